"""The page for everybody: contrast by WCAG, and all of it by keyboard."""

from __future__ import annotations

import pytest

import hookscope
from tests.views.html.conftest import assert_contrast


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_the_contrast_that_wcag_asks_for(opened, folder, dark) -> None:
    files = [folder / f"{name}.safetensors" for name in ("values", "odd")]
    page = opened(hookscope.report(*files).html, dark=dark)
    for typed in ("", "stage2.0"):
        page.fill("#filter", typed)
        assert_contrast(page, 100)


def test_what_can_be_reached_by_tab_has_a_name_and_shows_its_focus(opened, html) -> None:
    page = opened(html)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        element = page.evaluate(
            """() => { const e = document.activeElement; const s = getComputedStyle(e);
            return e === document.body ? null : { name: (e.ariaLabel ?? e.labels?.[0]?.textContent
            ?? e.textContent).trim(), is: e.getAttribute('role') || e.id || e.tagName,
            focus: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 }; }"""
        )
        if element is None:
            break
        reached.append(element)
    assert all(element["name"] and element["focus"] for element in reached), reached
    order = [element["is"] for element in reached]
    graph = ["unfold", "fold", "SUMMARY"]
    assert order[:7] == ["theme", "SUMMARY", *graph, "filter", "treeitem"]
    assert order[7] == "region"  # the table, so that it can be scrolled by keyboard
    assert set(order[8:22]) == {"BUTTON"}


def test_the_table_sorts_by_keyboard_and_says_how(opened, html) -> None:
    page = opened(html)
    button = page.locator("#table thead button:text-is('norm')")
    button.focus()
    for key, said in (("Enter", "ascending"), (" ", "descending")):
        page.keyboard.press(key)
        assert (
            page.locator("#table th:has(button:text-is('norm'))").get_attribute("aria-sort") == said
        )
        assert page.evaluate("document.activeElement.textContent") == "norm"
