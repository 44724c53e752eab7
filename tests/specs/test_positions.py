"""Positions are parsed once, into plain data."""

from __future__ import annotations

import pytest

from hookscope.errors import RequestError
from hookscope.specs.edit import parse_edits
from hookscope.specs.position_spec import ClassToken, IndexRange, Patch, TokenText, split_positions
from hookscope.specs.request import LayerSelection


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("3", [IndexRange(3, 3)]),
        ("-1", [IndexRange(-1, -1)]),
        ("2-5", [IndexRange(2, 5)]),
        ("-3--1", [IndexRange(-3, -1)]),
        ("' Paris'", [TokenText(" Paris")]),
        ('0,"a,b@c",-1', [IndexRange(0, 0), TokenText("a,b@c"), IndexRange(-1, -1)]),
        ("3x5,cls", [Patch(3, 5), ClassToken()]),
    ],
)
def test_positions_follow_an_at_sign(text: str, entries: list[object]) -> None:
    name, positions = split_positions(f"h.1@{text}")
    assert positions is not None
    assert (name, list(positions.entries), positions.text) == ("h.1", entries, text)


@pytest.mark.parametrize("text", ["h@", "@3", "h@a", "h@1,", "h@1;2", 'h@"', "h@1-2-3", "h@x3"])
def test_what_is_no_position_is_an_error(text: str) -> None:
    with pytest.raises(RequestError):
        split_positions(text)


def test_an_edit_has_call_positions_and_channels() -> None:
    [edit] = parse_edits('h.1:2@"a=b[",-1[3,4]=scale:2')
    assert (edit.pattern, edit.call, edit.channels, edit.name) == ("h.1", 2, (3, 4), "scale")
    assert edit.positions is not None
    assert edit.positions.entries == (TokenText("a=b["), IndexRange(-1, -1))
    assert edit.what == "scale:2"
    [plain] = parse_edits("h.1=zero")
    assert plain.positions is None


def test_a_selection_separates_positions_from_patterns_but_not_from_names() -> None:
    selection = LayerSelection(["h.*@-1", "fc"])
    (pattern, positions), whole = selection.parsed_in((), positions=True)
    assert (pattern, positions.text, whole) == ("h.*", "-1", ("fc", None))
    names = {"h@1", "h", "!h"}
    found = LayerSelection(["h@1", "h[@]1", "h"]).parsed_in(names, positions=False)
    assert found == (("h@1", None), ("h[@]1", None), ("h", None))
    for refused, allowed in (("!h.*@-1", True), ("h@2", False)):
        with pytest.raises(RequestError):
            LayerSelection([refused]).parsed_in(names, positions=allowed)
