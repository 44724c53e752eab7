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


def test_a_star_crosses_dots_and_a_plain_name_is_only_itself() -> None:
    assert matches("layer3.*", "layer3.0.conv1")
    assert matches("*.conv1", "layer3.0.conv1")
    assert matches("layer3", "layer3") and not matches("layer3", "layer3.0")
    assert matches(".", ".") and not matches(".", "layer3")
    assert not matches("Layer3", "layer3")


def test_the_model_has_the_name_that_tables_give_it_too() -> None:
    assert (
        matches("(model)", ".") and matches("{fc,(model)}", ".") and matches("(model)*", "(model)x")
    )
    assert not matches("(model)", "fc") and not matches("(model)", "(model)")
    assert matches("(model)/*", "./output") and matches("(model):2", ".:2")


def test_braces_nest() -> None:
    assert expand_braces("{a,b{c,d}}e") == ["ae", "bce", "bde"]
    assert expand_braces("x,y{,z}") == ["x,y", "x,yz"]


@pytest.mark.parametrize("pattern", ["{a", "a}", "{a,{b}", "{a}}", "}{"])
def test_a_brace_without_its_partner_is_an_error(pattern: str) -> None:
    with pytest.raises(LayerError, match="unbalanced") as caught:
        matches(pattern, "a")
    assert repr(pattern) in str(caught.value)


def test_braces_that_explode_are_refused_at_once() -> None:
    with pytest.raises(LayerError, match="expands"):
        matches("{a,b}" * 40, "a")


@pytest.mark.parametrize("pattern", ["", "!"])
def test_an_empty_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(LayerError, match="empty"):
        split_exclusions(["a", pattern])


@given(st.text("{},ab*", max_size=30))
def test_any_text_is_read_or_refused(pattern: str) -> None:
    try:
        matches(pattern, "ab")
    except LayerError as error:
        assert error.hint
