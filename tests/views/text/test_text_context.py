"""A marked token in its text: brackets, cuts and escapes."""

from __future__ import annotations

from functools import partial

import pytest
from rich.cells import cell_len

from hookscope.escapes import visible
from hookscope.file_analysis.top_inputs import RankedInput
from hookscope.views.text.text_context import marked_text

LONG = "word " * 40


def ranked(text: str | None, token: str | None, start: int | None = None) -> RankedInput:
    if token is None:
        return RankedInput(0, 1.0, None, "t.jsonl:1", None, None, text)
    at = start if start is not None else (text or "").index(token)
    stop = at + (len(token) if text and text[at:].startswith(token) else 0)
    return RankedInput(0, 1.0, (3,), "t.jsonl:1", None, None, text, token, (at, stop))


@pytest.mark.parametrize(
    ("text", "token", "wanted"),
    [
        ("The colour of water is", " water", "The colour of [water] is"),
        ("The colour of water is", "The", "[The] colour of water is"),
        ("see [1] there", "there", "see [1] [[there]]"),
        ("see [[1]] there", "see", "[[[see]]] [[1]] there"),
        ("a\nb", "\n", "a[\n]b"),
        ("a  b", "  ", "a[  ]b"),
        ("בירת צרפת", " צרפת", "בירת [צרפת]"),
        ("no token", None, "no token"),
    ],
)
def test_brackets_mark_the_token(text: str, token: str | None, wanted: str) -> None:
    assert marked_text(ranked(text, token)) == wanted


def test_a_special_token_is_where_it_was_added() -> None:
    assert marked_text(ranked("the capital", "[CLS]", 0)) == "[[CLS]]the capital"
    assert marked_text(ranked("the capital", "</s>", 11)) == "the capital[</s>]"
    assert marked_text(ranked(None, "[CLS]", 0)) == "[[CLS]]"


@pytest.mark.parametrize("width", [20, 24, 33, 80])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(
    ("text", "token"),
    [
        (f"{LONG}Paris {LONG}", "Paris"),
        (f"Paris {LONG}", "Paris"),
        (f"{LONG}Paris", "Paris"),
        (f"{LONG}{'long' * 50} {LONG}", "long" * 50),
        ("首都" * 60 + "パリ" + "です" * 60, "パリ"),
        ("👨‍👩‍👧" * 20 + "Zażółć" + "\n" * 40, "Zażółć"),
        ("e\u0301" * 90 + "x", "x"),
        (LONG, None),
    ],
)
def test_a_cut_text_fits_and_shows_the_token(
    text: str, token: str | None, width: int, ascii: bool
) -> None:
    shown = partial(visible, ascii=ascii)
    found = marked_text(ranked(text, token), width, shown)
    assert cell_len(shown(found)) <= width
    if token is not None:
        assert f"[{token}]" in found or (f"[{token[:1]}" in found and "...]" in found)
    assert found.startswith("...") or found.startswith(("[", text[:3]))
    assert "..." in found or found.replace("[", "").replace("]", "") == text.rstrip()


def test_the_room_of_a_short_side_goes_to_the_other() -> None:
    found = marked_text(ranked(f"A Paris {LONG}", "Paris"), 40)
    assert found.startswith("A [Paris] word") and len(found) == 40
