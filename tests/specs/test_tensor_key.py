"""Words for tensors of a file: keys, globs, layers, and a slice behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from hookscope.errors import RequestError
from hookscope.specs.tensor_key import WHOLE, choose_keys, slice_text, split_slice

KEYS = [
    *("conv1/output", "conv1/input.0", "conv1:2/output"),
    *("layer.0/output", "./output", "odd[1]/output.a[0]"),
]


def chosen(*words: str) -> list[str]:
    return [f"{key}{slice_text(index)}" for key, index in choose_keys(words, KEYS, "a")]


def test_a_word_is_a_key_a_glob_or_a_layer() -> None:
    assert chosen("conv1/output") == ["conv1/output"]
    assert chosen("conv1") == ["conv1/output", "conv1/input.0"]
    assert chosen("conv1:2[0]") == ["conv1:2/output[0]"]
    assert chosen() == []
    assert chosen("*/input*") == ["conv1/input.0"]
    assert chosen("conv1*") == KEYS[:3]
    assert chosen(".") == chosen("(model)") == chosen("(model)/output") == ["./output"]
    assert chosen("(model)[0]") == ["./output[0]"]
    assert chosen("{conv1:2,layer.0}") == ["conv1:2/output", "layer.0/output"]


def test_words_keep_their_order_and_nothing_comes_twice() -> None:
    assert chosen("layer.0", "conv1", "conv1/output") == ["layer.0/output", *KEYS[:2]]
    assert chosen("conv1/output[0]", "conv1/output[1]", "conv1/output[0]") == [
        *("conv1/output[0]", "conv1/output[1]"),
    ]


def test_brackets_that_belong_to_a_name_or_a_glob_are_no_slice() -> None:
    assert chosen("odd[1]/output.a[0]") == [KEYS[-1]]
    assert chosen("conv[12]") == ["conv1/output", "conv1/input.0"]
    assert chosen("conv[!2]/output[3]") == ["conv1/output[3]"]


NO_SLICES = "[] [0,] [1.5] [1:2:0] [::0] [::-0] [--1] [..] [....] [1:2:3:4]"


@pytest.mark.parametrize("text", [*NO_SLICES.split(), "[0 1]"])
def test_a_slice_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        choose_keys([f"conv1/output{text}"], KEYS, "a")
    assert text in str(caught.value) and "[0,3]" in caught.value.hint


@pytest.mark.parametrize(
    ("word", "hint"),
    [("cnv1/output[0]", "conv1/output"), ("zzzzzz", "hookscope show a")],
)
def test_a_word_that_matches_nothing_gets_near_ones(word: str, hint: str) -> None:
    with pytest.raises(RequestError, match=word.partition("[")[0]) as caught:
        chosen(word)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        *("0", "-1", "0,1", "0,-1,2", ":", "1:", ":2", "1:3", "::2", "1::2", ":3:2", "-2:"),
        *("...", "...,1", "0,...", " 1 , 2", "0:0"),
    ],
)
def test_a_slice_takes_what_numpy_takes(text: str) -> None:
    values = np.arange(60).reshape(3, 4, 5)
    name, index = split_slice(f"a/output[{text}]")
    assert name == "a/output"
    assert np.array_equal(values[index], eval(f"values[{text}]"))  # numpy itself is the oracle


def test_a_module_with_a_slash_in_its_name_is_chosen_by_all_of_it() -> None:
    keys = ["a/b/output", "a/c/output"]
    assert [key for key, _ in choose_keys(["a/b"], keys, "f")] == ["a/b/output"]
    with pytest.raises(RequestError) as caught:
        choose_keys(["a/bb"], keys, "f")
    assert "a/b" in caught.value.hint


@given(hnp.basic_indices((3, 4, 5, 6), allow_newaxis=False))
def test_a_slice_as_text_is_read_back(index: object) -> None:
    whole = index if isinstance(index, tuple) else (index,)
    if whole == () or whole == WHOLE:
        return
    values = np.arange(360).reshape(3, 4, 5, 6)
    found = split_slice(f"a{slice_text(whole)}")  # type: ignore[arg-type]
    assert found[0] == "a" and np.array_equal(values[found[1]], values[whole])
