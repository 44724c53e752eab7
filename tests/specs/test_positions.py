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
        ("h.1@3", [IndexRange(3, 3)]),
        ("h.1@-1", [IndexRange(-1, -1)]),
        ("h.1@2-5", [IndexRange(2, 5)]),
        ("h.1@-3--1", [IndexRange(-3, -1)]),
        ('h.1@" Paris"', [TokenText(" Paris")]),
        ("h.1@' Paris'", [TokenText(" Paris")]),
        ('h.1@0,"a,b@c",-1', [IndexRange(0, 0), TokenText("a,b@c"), IndexRange(-1, -1)]),
        ("h.1@3x5,cls", [Patch(3, 5), ClassToken()]),
    ],
)
def test_positions_follow_an_at_sign(text: str, entries: list[object]) -> None:
    name, positions = split_positions(text)
    assert positions is not None
    assert (name, list(positions.entries)) == ("h.1", entries)
    assert positions.text == text.partition("@")[2]


@pytest.mark.parametrize("text", ["h@", "@3", "h@a", "h@1,", "h@1;2", 'h@"', "h@1-2-3", "h@x3"])
def test_what_is_no_position_is_an_error(text: str) -> None:
    with pytest.raises(RequestError, match=r"is not a position|has no"):
        split_positions(text)


def test_an_edit_has_call_positions_and_channels() -> None:
    [edit] = parse_edits('h.1:2@"a=b[",-1[3,4]=scale:2')
    assert (edit.pattern, edit.call, edit.channels, edit.name) == ("h.1", 2, (3, 4), "scale")
    assert edit.positions is not None
    assert edit.positions.entries == (TokenText("a=b["), IndexRange(-1, -1))
    assert edit.what == "scale:2"
    [plain] = parse_edits("h.1=zero")
    assert plain.positions is None


def test_a_selection_separates_positions() -> None:
    selection = LayerSelection(["h.*@-1", "fc"])
    (pattern, positions), whole = selection.parsed_in((), positions=True)
    assert (pattern, positions.text, whole) == ("h.*", "-1", ("fc", None))
    with pytest.raises(RequestError, match="excluded"):
        LayerSelection(["!h.*@-1"]).parsed_in((), positions=True)


def test_a_name_of_a_layer_has_no_positions() -> None:
    names = {"h@1", "h", "!h"}
    selection = LayerSelection(["h@1", "h[@]1", "h"])
    found = selection.parsed_in(names, positions=False)
    assert found == (("h@1", None), ("h[@]1", None), ("h", None))
    with pytest.raises(RequestError, match="Only capture stores single positions"):
        LayerSelection(["h@2"]).parsed_in(names, positions=False)
