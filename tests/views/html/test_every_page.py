"""What holds for a page of any result: nothing leads out of it, and all of it can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KINDS = ("capture", "pair", "odd", "run", "runs", "weights", "errors")
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
NARROWEST = {"weights": 500}
TEXTS = {"weights": 30, "errors": 30}  # that there are at least on the page; 50 on others


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_result_gives_the_same_page_which_needs_nothing_else(pages, kind: str) -> None:
    html = pages[kind]()
    assert html == pages[kind]()
    assert (
        re.findall(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|https?:(?!//www.w3.org/)""", html)
        == []
    )
    assert "<script>alert" not in html  # which is a name
    assert "script&gt;alert" in html or "script\\u003ealert" in html
    assert " style=" not in html  # which the page's own policy would refuse
    assert re.search(r"default-src (&#39;|')none(&#39;|')", html)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_has_the_contrast_that_wcag_asks_for(opened, pages, kind: str, dark) -> None:
    page = opened(pages[kind](), width=500, dark=dark)
    texts, faint = page.evaluate(CONTRAST)
    assert texts > TEXTS.get(kind, 50)
    assert faint == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [360, 718, 1400, 2560])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wider_than_the_window(opened, pages, kind: str, width: int) -> None:
    width = max(width, NARROWEST.get(kind, 0))
    page = opened(pages[kind](), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(e => e.offsetParent &&
        !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert beyond == []
