"""Numbers, shapes, names and sentences as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hookscope.escapes import visible
from hookscope.files.words import (
    bytes_text,
    fold,
    full_text,
    near_one_text,
    number_text,
    percent_text,
    plural,
    shape_text,
    short_count_text,
    wrap,
)

TEXT = st.text(st.characters(), max_size=80)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.00123456, "0.001235"),
        (1234.6, "1235"),
        (123456.0, "1.235e+05"),
        (-1e-12, "-1.000e-12"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
        (255, "255"),
        (True, "1"),
        (2**63 - 1, "9.223e+18"),
        (None, "-"),
    ],
)
def test_number_keeps_four_significant_digits(value: float | None, shown: str) -> None:
    assert number_text(value) == shown


@given(st.floats(-1e300, 1e300))
def test_number_shown_is_within_half_a_digit(value: float) -> None:
    assert math.isclose(float(number_text(value)), value, rel_tol=5.1e-4)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float32_survives_a_pipe(value: float) -> None:
    assert math.isclose(float(full_text(value)), value, rel_tol=1e-8)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.00K"), (999_499, "999K"), (999_500, "1.00M")],
)
def test_large_counts_are_short(number: int, shown: str) -> None:
    assert short_count_text(number) == shown


@given(st.integers(0, 10**18))
def test_short_count_is_short_and_near(number: int) -> None:
    shown = short_count_text(number)
    unit = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}.get(shown[-1], 1)
    assert len(shown) <= 5
    assert math.isclose(float(shown.rstrip("KMGTPE")) * unit, number, rel_tol=5.1e-3)


def test_bytes_are_in_si_units() -> None:
    assert [bytes_text(n) for n in (0, 1, 999, 1000, 46_796_608, 2 * 10**12)] == [
        *("0 bytes", "1 byte", "999 bytes", "1.00 kB", "46.8 MB", "2.00 TB")
    ]


def test_per_cent_says_none_and_all_only_when_exact() -> None:
    shares = (0, 1e-9, 0.0004, 0.25, 0.9994, 0.9999, 1)
    assert [percent_text(x) for x in shares] == [
        *("0%", "<0.1%", "<0.1%", "25.0%", "99.9%", ">99.9%", "100%")
    ]


@given(st.floats(-1, 1))
def test_a_number_near_one_reads_as_one_only_if_it_is(value: float) -> None:
    for places in (2, 3, 4):
        text = near_one_text(value, places) or f"{value:.{places}f}"
        number = float(text.lstrip("<>"))
        is_one = abs(value) >= 1 - 1e-9
        assert (abs(number) == 1) is is_one
        if text[0] in "<>":
            assert abs(number) < abs(value)
        else:
            assert abs(number - value) <= 0.5 * 10.0**-places + 1e-12


def test_shape_and_plural() -> None:
    assert (shape_text((1, 64, 56)), shape_text((0,)), shape_text(())) == ("1x64x56", "0", "scalar")
    assert shape_text((), "one number") == "one number"
    assert (plural(1, "layer"), plural(1500, "layer")) == ("1 layer", "1,500 layers")


@given(TEXT, st.booleans())
def test_visible_text_is_one_printable_line(text: str, ascii: bool) -> None:
    shown = visible(text, ascii)
    assert shown.isprintable()
    assert shown == shown.rstrip()
    assert shown.isascii() or not ascii
    shown.encode("utf-8")


def test_visible_leaves_ordinary_names_alone() -> None:
    for name in ("layer3.0.conv1", ":x:", "[red]", "naïve", "層", "a b"):
        assert visible(name) == name
    assert visible("é層", ascii=True) == r"\xe9\u5c64"
    assert visible("a\x1b[0m\n\ud800 ") == r"a\x1b[0m\n\ud800\x20"


@given(TEXT, st.integers(2, 40))
def test_fold_keeps_every_character(text: str, width: int) -> None:
    pieces = fold(text, width)
    assert "".join(pieces) == text
    assert all(cell_len(piece) <= width for piece in pieces)


@given(st.lists(TEXT.map(visible).filter(lambda t: t and " " not in t)), st.integers(8, 60))
def test_wrap_keeps_every_word_within_the_width(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(words)
