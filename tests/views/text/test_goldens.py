"""The text of results at 40 and 80 columns and in a pipe, compared with files.

After an intended change, ``HOOKSCOPE_REFRESH_GOLDENS=1 pytest tests/views`` rewrites the files.
These results have odd values in every place; what commands print of real models is in transcripts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len

from hookscope.escapes import visible
from hookscope.views import display
from hookscope.views.models import models_lines
from hookscope.views.text.table import CollectedTables, Table
from hookscope.views.text.text_table import TextOptions
from tests.views.text import samples

RESULTS = {
    **samples.SAMPLES,
    "edited": samples.edited,
    "every-kind": samples.every_kind,
    "ended": partial(samples.ended, "capture"),
    "ended-grads": partial(samples.ended, "grads"),
    "tree-shapes": lambda: samples.with_run(samples.small_tree()),
    "models": samples.models,
}


def texts(result: Any, options: TextOptions) -> list[str]:
    show = models_lines if isinstance(result, list) else display.text
    return [line.plain for line in show(result, options)]


@pytest.mark.parametrize("name", RESULTS)
def test_output_is_the_golden_one(name: str) -> None:
    result = RESULTS[name]()
    lines = [
        line
        for width in (40, 80, None)
        for line in (f"== {width or 'a pipe'}", *texts(result, TextOptions(width)))
    ]
    samples.same_as_golden(name, lines)


def tables_of(result: Any) -> list[Table]:
    collected = CollectedTables()
    texts(result, TextOptions(tables=collected))
    return [*collected.main, *collected.others]


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [40, 80, 200, None])
@pytest.mark.parametrize("name", RESULTS)
def test_lines_fit_and_no_name_is_cut(name: str, width: int | None, ascii: bool) -> None:
    result = RESULTS[name]()
    lines = texts(result, TextOptions(width, ascii, verbose=ascii))
    assert all(line == line.rstrip() and "…" not in line for line in lines)
    assert width is None or max(map(cell_len, lines)) <= width
    assert not ascii or all(line.isascii() for line in lines)
    whole = "".join(lines).replace(" ", "")
    tables = tables_of(result)
    for table in tables:
        for row in table.rows[: len(lines) if width is None else 10]:
            assert visible(row.cells[0].text, ascii).replace(" ", "") in whole
        if width is None and not ascii and table is tables[0] and table.rows:
            header = " ".join(column.title for column in table.columns).split()
            assert any(line.split()[: len(header)] == header for line in lines)


@pytest.mark.parametrize("name", RESULTS)
def test_columns_keep_their_order_and_yield_one_by_one_as_the_terminal_narrows(name: str) -> None:
    result = RESULTS[name]()
    for table in tables_of(result)[:1]:
        known = {column.short or column.title: column.title for column in table.columns}
        titles = [column.title for column in table.columns]
        wider = titles
        for width in range(200, 20, -4):
            lines = texts(result, TextOptions(width))
            header = next(line.split() for line in lines if line.split()[:1] == titles[:1])
            shown = [known.get(word, word) for word in header]
            assert shown == [title for title in titles if title in shown]
            assert set(shown) <= set(wider)
            wider = shown
