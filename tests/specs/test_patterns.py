"""Layer patterns: Python's fnmatch, braces and a leading exclamation mark."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope.errors import LayerError
from hookscope.specs.patterns import expand_braces, matches, split_exclusions

names = st.text("ab.01_", max_size=8)
globs = st.text("ab.01_*?[]!-", max_size=8)


@given(globs, names)
def test_without_braces_a_pattern_is_that_of_fnmatch(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatchcase(name, pattern)


@given(st.lists(st.lists(globs, min_size=1, max_size=3), min_size=1, max_size=3), names)
def test_braces_are_the_union_of_their_choices(groups: list[list[str]], name: str) -> None:
    braced = "x".join("{" + ",".join(group) + "}" for group in groups)
    written_out = ["x".join(choice) for choice in itertools.product(*groups)]
    assert expand_braces(braced) == written_out
    assert matches(braced, name) == any(fnmatchcase(name, p) for p in written_out)


def test_braces_nest() -> None:
    assert expand_braces("{a,b{c,d}}e") == ["ae", "bce", "bde"]
    assert expand_braces("x,y{,z}") == ["x,y", "x,yz"]


@pytest.mark.parametrize(
    ("pattern", "same", "others"),
    [
        (".", ["."], ["layer3"]),
        ("(model)", ["."], ["fc", "(model)"]),
        ("{fc,(model)}", [".", "fc"], []),
        ("(model)*", ["(model)x"], ["."]),
        ("(model)/*", ["./output"], ["fc/output"]),
        ("(model):2", [".:2"], ["."]),
    ],
)
def test_the_model_has_the_name_that_tables_give_it_too(pattern, same, others) -> None:
    assert all(matches(pattern, name) for name in same)
    assert not any(matches(pattern, name) for name in others)


@pytest.mark.parametrize("pattern", ["{a", "a}", "{a,{b}", "{a}}", "}{", "{a,b}" * 40])
def test_braces_without_a_partner_or_with_too_many_choices_are_an_error(pattern: str) -> None:
    with pytest.raises(LayerError) as caught:
        matches(pattern, "a")
    assert pattern in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "!"])
def test_an_empty_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(LayerError):
        split_exclusions(["a", pattern])


@given(st.text("{},ab*", max_size=30))
def test_any_text_is_read_or_refused(pattern: str) -> None:
    try:
        matches(pattern, "ab")
    except LayerError as error:
        assert error.hint
