"""The page of ``diff``: errors at their places on a logarithmic scale, and the table below."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import hookscope
from hookscope.results.local_diff import LocalDiff
from hookscope.specs.patterns import layer_text
from hookscope.views.capture_diff import diff_chart
from hookscope.views.error_chart import ErrorPage
from hookscope.views.html.svg import BOTTOM, HEIGHT, MARK_HEIGHT, TOP
from hookscope.views.local_diff import local_diff_chart
from tests.views.error_results import SCRIPT, deep, local_diff

ERRORS = [
    ("stem", 0.0, 0.0),
    (SCRIPT, 2e-3, 5e-3),
    ("body.0", 0.25, 1e-8),
    ("body.1", None, None),
    ("body", math.inf, 0.0),
    (".", 0.5, math.inf),
]


def page_of(result: LocalDiff) -> ErrorPage:
    return local_diff_chart(result).page(result)


def drawing(page: ErrorPage) -> ElementTree.Element:
    return ElementTree.fromstring(str(page.figure.svg))


def drawn(page: ErrorPage) -> dict[str, tuple[float, float]]:
    """Where each titled point is."""
    return {
        circle.findtext("title", ""): (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in drawing(page).iter("circle")
    }


def test_each_error_is_at_its_place_on_the_scale() -> None:
    page = page_of(local_diff(ERRORS))
    labels = {
        np.log10(float(text.text or "")): float(text.attrib["y"]) - 4
        for text in drawing(page).iter("text")
        if text.get("class") == "end"
    }
    (p0, y0), (p1, y1) = min(labels.items()), max(labels.items())
    places = drawn(page)
    for position, (name, *both) in enumerate(ERRORS):
        for label, value in zip(("accumulated error", "own error"), both, strict=True):
            found = [
                at
                for title, at in places.items()
                if title.startswith(f"{layer_text(name)}, {label}: ")
            ]
            if value is None:
                assert found == []
                continue
            [(x, y)] = found
            assert x == pytest.approx(62 + position * (760 - 62 - 12) / 5, abs=0.1)
            if value and math.isfinite(value):
                power = p0 + (y - y0) * (p1 - p0) / (y1 - y0)
                assert 10**power == pytest.approx(value, rel=0.02)
            else:  # zero at the bottom, infinite at the top
                assert y == (TOP + MARK_HEIGHT if value else HEIGHT - BOTTOM)


def test_the_first_fault_is_marked_and_the_caption_says_what_is_drawn() -> None:
    page = page_of(local_diff(ERRORS, floor="float64"))
    marked = [text for text in drawing(page).iter("text") if "found" in text.get("class", "")]
    assert [text.text for text in marked] == [f"…{SCRIPT[-23:]}"]
    assert float(marked[0].attrib["x"]) == pytest.approx(62 + (760 - 62 - 12) / 5, abs=0.1)
    assert f"{SCRIPT}, is the first" in page.figure.caption
    healthy = page_of(local_diff([("stem", 0.0, 0.0)]))
    assert not re.search("found|marked", f"{healthy.figure.svg}{healthy.figure.caption}")


def test_the_table_has_a_row_for_each_module_that_a_point_leads_to() -> None:
    page = page_of(local_diff(ERRORS, floor="float64"))
    assert [column.title for column in page.columns][:4] == ["#", "layer", "type", "accumulated"]
    assert [row.cells[1].text for row in page.rows] == [layer_text(name) for name, *_ in ERRORS]
    own = [column.title for column in page.columns].index("own")
    assert [row.cells[own].value for row in page.rows] == [value for *_, value in ERRORS]
    links = {
        link.findtext("circle/title", "").partition(",")[0]: link.attrib["href"]
        for link in drawing(page).iter("a")
    }
    assert links == {
        row.cells[1].text: f"#{row.id}" for row in page.rows if row.cells[1].text != "body.1"
    }


def test_the_chart_of_two_captures_has_the_error_of_each_tensor(folder: Path) -> None:
    files = [folder / f"{name}.safetensors" for name in ("values", "other")]
    a, b = (hookscope.load(file) for file in files)
    chart = diff_chart(hookscope.diff(*files))
    [line] = chart.lines
    wanted = [np.linalg.norm(a[key] - b[key]) / np.linalg.norm(a[key]) for key in chart.names]
    assert line.values == pytest.approx(wanted, rel=1e-5)
    assert chart.first is not None and wanted[chart.first] > 0 == wanted[0]
    rows = chart.page(hookscope.diff(*files)).rows
    missing = [row.cells[1].text for row in rows if row.kind == "missing"]
    assert missing == ["fc/input.0", "fc/output"]


@pytest.mark.parametrize("count", [1, 2, 2000])
def test_a_page_of_any_depth_is_whole(count: int) -> None:
    html = page_of(deep(count) if count > 1 else local_diff([(SCRIPT, 0.0, 0.0)])).html()
    assert html.count("<tr") == 1 + count
    assert len(html) < 2_000_000
    assert "nan" not in re.findall(r"<svg.*</svg>", html, re.DOTALL)[0].lower()


def test_a_point_leads_to_its_row_in_a_browser(opened) -> None:
    page = opened(page_of(local_diff(ERRORS, floor="float64")).html(), width=400)
    page.click(".flow a:has(title:text('body, own error'))", force=True)
    assert page.inner_text("#table tr:target th") == "body"
    page.click("#table thead button:text-is('own')")
    page.click("#table thead button:text-is('own')")
    assert page.inner_text("#table tbody tr:first-child th") == "(model)"
