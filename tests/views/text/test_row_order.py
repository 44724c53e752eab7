"""The table of a result sorted by a column, cut after some rows, with a number of digits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hookscope.errors import RequestError
from hookscope.views.text.shared_parts import number_cell, share_cell
from hookscope.views.text.table import Cell, Column, Row, Table
from hookscope.views.text.text_table import TextOptions, result_table

COLUMNS = (Column("layer"), Column("mean", "m", right=True), Column("zeros", right=True))
VALUES = {
    "small": (-2.0, 0.25),
    "first": (1 / 3, 0.5),
    "none": (None, 0.0),
    "bad": (float("nan"), 1.0),
    "second": (1 / 3, 1 / 3),
}
NOTES = {"small": "vanishing", "second": "exploding"}


def table() -> Table:
    rows = [
        Row((Cell(name), number_cell(mean), share_cell(zeros)), Cell(NOTES.get(name, "")))
        for name, (mean, zeros) in VALUES.items()
    ]
    idle = Row((Cell("idle"), Cell(), Cell()), Cell("never ran"), missing=True)
    return Table(COLUMNS, (idle, *rows))


def names(sort: str | None = None, top: int | None = None, width: int | None = None) -> list[str]:
    lines = result_table(table(), TextOptions(width, sort=sort, top=top))[1:]
    return [line.plain.split()[0] for line in lines]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (None, ["idle", *VALUES]),
        ("mean", ["bad", "first", "second", "small", "none", "idle"]),
        ("-mean", ["bad", "small", "first", "second", "none", "idle"]),
        ("M", ["bad", "first", "second", "small", "none", "idle"]),
        ("zeros", ["bad", "first", "second", "small", "none", "idle"]),
        ("layer", ["bad", "first", "none", "second", "small", "idle"]),
        ("-layer", ["small", "second", "none", "first", "bad", "idle"]),
        ("note", ["second", "small", "first", "none", "bad", "idle"]),
        ("-Note", ["small", "second", "first", "none", "bad", "idle"]),
    ],
)
def test_numbers_go_from_the_largest_down_and_texts_from_a_to_z(sort, order) -> None:
    assert names(sort) == order


def test_rows_are_cut_after_they_are_sorted() -> None:
    assert names("mean", 2) == ["bad", "first"]
    lines = result_table(table(), TextOptions(80, sort="mean", top=2))
    assert lines[-1].plain == "... and 4 more rows."
    assert [line.plain for line in result_table(table(), TextOptions(80, top=6))][-1][
        :6
    ] == "second"


@pytest.mark.parametrize(
    ("sort", "hint"),
    [
        ("means", "mean"),
        ("-zero", "zeros"),
        ("", "layer, mean, zeros, note"),
        ("q", ","),
        ("notes", "note"),
    ],
)
def test_an_unknown_column_is_an_error_that_names_columns(sort: str, hint: str) -> None:
    options = TextOptions(sort=sort or "-")
    with pytest.raises(RequestError, match="column") as caught:
        result_table(table(), options)
    assert hint in caught.value.hint


def test_a_table_without_notes_is_not_sorted_by_them() -> None:
    with pytest.raises(RequestError, match="'note'"):
        result_table(replace(table(), note=""), TextOptions(sort="note"))


@pytest.mark.parametrize(
    ("options", "mean", "zeros"),
    [
        (TextOptions(), "0.333333", "0.5"),
        (TextOptions(precision=9), "0.333333333", "0.5"),
        (TextOptions(precision=2), "0.33", "0.5"),
        (TextOptions(80), "0.3333", "50.0%"),
        (TextOptions(80, precision=9), "0.333333333", "50.0%"),
        (TextOptions(80, precision=2), "0.33", "50.0%"),
    ],
)
def test_digits_are_six_in_a_pipe_four_on_a_terminal_or_those_asked_for(
    options: TextOptions, mean: str, zeros: str
) -> None:
    [row] = [
        line.plain for line in result_table(table(), options) if line.plain.startswith("first")
    ]
    assert row.split()[:3] == ["first", mean, zeros]


def test_lines_to_a_parent_are_not_drawn_in_another_order() -> None:
    rows = (
        Row((Cell("a"), number_cell(1.0), Cell()), continuation="│ "),
        Row((Cell("a.b", full="  a.b"), number_cell(2.0), Cell()), guide="└─ "),
    )
    tree = Table(COLUMNS, rows)
    assert [line.plain[:6] for line in result_table(tree, TextOptions(80))[1:]] == [
        "a     ",
        "└─ a.b",
    ]
    for width in (80, None):
        lines = result_table(tree, TextOptions(width, sort="mean"))[1:]
        assert [line.plain.split()[0] for line in lines] == ["a.b", "a"]
        assert lines[0].plain.startswith("a.b")
