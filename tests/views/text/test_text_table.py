"""The table: what every width keeps, and what a pipe gets."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hookscope.escapes import visible
from hookscope.views.text.table import Cell, Column, Row, Table
from hookscope.views.text.text_table import PIPE, TextOptions, sentence, table_lines
from tests.views.text.samples import ODD_NAMES

COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", optional=True),
    Column("mean", right=True),
)
SQUEEZE = (("shorten", "type"), ("drop", "type"), ("drop", "mean"))
NAMES = st.text(st.characters(), min_size=1, max_size=300)
WORDS = st.text(st.characters(), max_size=20)


def table(names: list[str], note: str = "", guide: str = "") -> Table:
    rows = [
        Row(
            (Cell(name), Cell("Conv2d(3, 64)", short="Conv2d"), Cell("output"), Cell(str(i))),
            Cell(note),
            guide=guide,
            continuation=guide,
        )
        for i, name in enumerate(names)
    ]
    return Table(COLUMNS, tuple(rows), SQUEEZE)  # type: ignore[arg-type]


def letters(text: str) -> str:
    """The text without the spaces, which padding and folding add."""
    return text.replace(" ", "")


@given(st.lists(NAMES, min_size=1, max_size=4), WORDS, st.integers(20, 220), st.booleans())
def test_no_name_and_no_note_is_ever_cut(
    names: list[str], note: str, width: int, ascii: bool
) -> None:
    lines = [line.plain for line in table_lines(table(names, note), TextOptions(width, ascii))]
    assert max(map(cell_len, lines)) <= width
    whole = letters("".join(lines))
    for name in names:
        assert letters(visible(name, ascii)) in whole
    assert whole.count(letters(visible(note, ascii))) >= len(names)


@given(st.lists(NAMES, max_size=4), WORDS, st.booleans())
def test_pipe_has_one_line_for_each_record(names: list[str], note: str, ascii: bool) -> None:
    lines = [line.plain for line in table_lines(table(names, note), TextOptions(None, ascii))]
    assert len(lines) == len(names) + 1
    for name, line in zip(names, lines[1:], strict=True):
        assert line.startswith(visible(name, ascii))
        assert line == line.rstrip()
        assert "\n" not in line


@given(st.integers(20, 120), st.integers(0, 60))
def test_deep_guides_leave_room_for_the_name(width: int, depth: int) -> None:
    lines = [
        x.plain
        for x in table_lines(table(["some.long.name" * 3], guide="│ " * depth), TextOptions(width))
    ]
    assert max(map(cell_len, lines)) <= width
    text = "".join(lines).replace("│", "").replace(" ", "")
    assert "some.long.name" * 3 in text


@pytest.mark.parametrize("width", [40, 80, 200, None])
@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_odd_names_come_out_literally(name: str, width: int | None) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width or 1000, force_terminal=True, color_system=None)
    for line in table_lines(table([name]), TextOptions(width)):
        console.print(line, soft_wrap=True)
    printed = stream.getvalue()
    assert visible(name).replace(" ", "") in printed.replace("\n", "").replace(" ", "")
    assert "\x1b" not in printed


def test_ascii_table_can_be_encoded_whatever_the_names() -> None:
    for width in (40, 80, None):
        for line in table_lines(table(list(ODD_NAMES)), TextOptions(width, ascii=True)):
            line.plain.encode("ascii")


def test_names_wider_than_their_column_get_a_line_of_their_own() -> None:
    assert [
        x.plain for x in table_lines(table(["a.name.that.is.too.long", "b"]), TextOptions(30))
    ] == [
        "layer             type    mean",
        "a.name.that.is.too.long",
        "                  Conv2d     0",
        "b                 Conv2d     1",
    ]


def test_columns_that_say_the_same_everywhere_go_first() -> None:
    assert table_lines(table(["a"]), TextOptions(40))[0].plain.split() == [
        "layer",
        "type",
        "what",
        "mean",
    ]
    assert table_lines(table(["a"]), TextOptions(30))[0].plain.split() == ["layer", "type", "mean"]


def test_columns_with_nothing_in_them_show_only_in_a_pipe() -> None:
    empty = Table(COLUMNS, (Row((Cell("a"), Cell(), Cell("output"), Cell())),))
    assert table_lines(empty, TextOptions(80))[0].plain.split() == ["layer", "what"]
    assert table_lines(empty, PIPE)[1].plain.split() == ["a", "-", "output", "-", "-"]


def test_pipe_has_full_values_and_a_terminal_short_ones() -> None:
    row = Row((Cell("a"), Cell("x"), Cell("y"), Cell("1.23M", full="1234567")))
    numbers = Table(COLUMNS, (row,))
    assert "1.23M" in table_lines(numbers, TextOptions(80))[1].plain
    assert "1234567" in table_lines(numbers, PIPE)[1].plain


def test_notes_of_rows_without_values_stand_in_their_place() -> None:
    missing = Row((Cell("fc"), Cell("Linear"), Cell(), Cell()), Cell("frozen"), missing=True)
    there = Row((Cell("conv"), Cell("Conv2d"), Cell("output"), Cell("1.000")), Cell("NaN! 1"))
    lines = [x.plain for x in table_lines(Table(COLUMNS, (there, missing)), TextOptions(80))]
    assert lines[1] == "conv   Conv2d  output  1.000  NaN! 1"
    assert lines[2] == "fc     Linear  frozen"


def test_table_without_rows_is_its_header() -> None:
    assert [x.plain for x in table_lines(table([]), PIPE)] == ["layer  type  what  mean  note"]
    assert len(table_lines(table([]), TextOptions(80))) == 1


def test_sentences_wrap_on_a_terminal_and_stay_whole_in_a_pipe() -> None:
    text = "Never ran: encoder.layers.self_attention.out_proj (a fused kernel)."
    assert [x.plain for x in sentence(text, PIPE)] == [text]
    assert [x.plain for x in sentence(text, TextOptions(44))] == [
        "Never ran:",
        "  encoder.layers.self_attention.out_proj (a",
        "  fused kernel).",
    ]
