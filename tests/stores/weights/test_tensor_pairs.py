"""Names of two sets of weights: what is matched, renamed, tied or alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope.errors import LayerError, RequestError, WeightsFileError
from hookscope.file_analysis.tensor_pairs import TensorPairs, match_tensors, select_pairs
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor
from tests.refusals import refused

NET = ["conv1.weight", "body.0.conv.weight", "body.0.conv.bias", "body.1.conv.weight", "fc.weight"]
LLAMA = [f"model.layers.{n}.self_attn.q_proj.weight" for n in range(3)]
PART = st.text("abcdefgh_0123", min_size=1, max_size=4)


def weights(
    names: Iterable[str], tied: Mapping[str, str] | None = None, path: str = "x.safetensors"
) -> WeightSet:
    """Weights of these names, each of its own shape."""
    tensors = {
        name: WeightTensor(name, "float32", (n + 1,), 4 * n + 4, path, (tied or {}).get(name, ""))
        for n, name in enumerate(names)
    }
    return WeightSet(path, "", "safetensors", tensors, {}, {})


def named(pairs: TensorPairs) -> tuple[dict[str, str], list[str], list[str]]:
    """The pairs by name, and the names of A and of B alone."""
    matched = {a.name: b.name for a, b in pairs.pairs}
    return matched, [t.name for t in pairs.only_a], [t.name for t in pairs.only_b]


def test_tensors_match_by_name_in_the_order_of_a() -> None:
    found = match_tensors(weights(NET), weights(["new", *reversed(NET[1:])]), None)
    matched, only_a, only_b = named(found)
    assert list(matched.items()) == [(name, name) for name in NET[1:]]
    assert (only_a, only_b, found.notes) == (["conv1.weight"], ["new"], ())


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "_fsdp_wrapped_module.", "module._orig_mod."]
)
@pytest.mark.parametrize("wrapped", ["A", "B"])
def test_prefixes_of_wrappers_are_ignored_and_named(prefix: str, wrapped: str) -> None:
    plain, other = weights(NET), weights(prefix + name for name in NET)
    sides = (other, plain) if wrapped == "A" else (plain, other)
    found = match_tensors(*sides, None)
    assert len(found.pairs) == len(NET) and not found.only_a and not found.only_b
    assert all(a.shape == b.shape for a, b in found.pairs)
    [note] = found.notes
    assert note.endswith(f"of names in {wrapped} is ignored.")
    assert all(f"{part}." in note for part in prefix.split(".") if part)


def test_a_prefix_that_both_have_is_a_part_of_the_name() -> None:
    names = ["module.a", "module.b"]
    assert match_tensors(weights(names), weights(names), None).notes == ()


@given(
    st.lists(st.lists(PART, min_size=1, max_size=3).map(".".join), min_size=1, unique=True),
    st.lists(PART, max_size=2).map(".".join),
    st.lists(PART, max_size=2).map(".".join),
    st.booleans(),
)
def test_any_renamed_prefix_is_found_on_either_side(names, old, new, swap) -> None:
    a = [".".join(filter(None, (old, name))) for name in names]
    b = [".".join(filter(None, (new, name))) for name in names]
    random.Random(len(names)).shuffle(b)
    if swap and any(name == new or name.startswith(f"{new}.") for name in a) | (not new):
        swap = False  # A has the prefix too, and A comes first
    rename = {new: old} if swap else {old: new}
    found = match_tensors(weights(a), weights(b), rename)
    assert named(found)[1:] == ([], [])
    assert [x.removeprefix(old).strip(".") for x, _ in named(found)[0].items()] == [
        y.removeprefix(new).strip(".") for y in named(found)[0].values()
    ]


def test_two_mappings_are_for_a_and_for_b() -> None:
    a, b = weights(["old.x", "same"]), weights(["old.y.x", "same"])
    found = match_tensors(a, b, ({"old": "net"}, {"old.y": "net"}))
    assert named(found)[0] == {"old.x": "old.y.x", "same": "same"}


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"fd": "x"}, "'fd'"),
        ({"body.0": "body.1"}, "'body.1.conv.weight'"),
        (({"fd": "x"}, {"fd": "x"}), "'fd'"),
    ],
)
def test_a_prefix_that_is_not_there_or_hides_another_is_refused(rename: Any, message: str) -> None:
    with pytest.raises(WeightsFileError, match=message):
        match_tensors(weights(NET), weights(NET), rename)


def test_unrelated_models_are_named_with_their_families() -> None:
    with pytest.raises(RequestError) as caught:
        match_tensors(weights(["layer4.0.conv1.weight"]), weights(LLAMA, path="y"), None)
    text = caught.value.message
    for word in ("layer4.0.conv1.weight", "ResNet", "self_attn.q_proj.weight", "Llama"):
        assert word in text
    assert "--rename OLD=NEW" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("swap", [False, True])
def test_adapters_are_no_weights_of_the_model_they_are_for(swap: bool) -> None:
    adapters = weights(f"base_model.{n.removesuffix('weight')}lora_A.weight" for n in LLAMA)
    sides = (adapters, weights(LLAMA)) if swap else (weights(LLAMA), adapters)
    with pytest.raises(RequestError) as caught:
        match_tensors(*sides, None)
    assert caught.value.hint.startswith(f"{'A' if swap else 'B'} contains LoRA adapters")


@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        ("", "model.", "--rename =model"),
        ("model.", "", "--rename model="),
        ("backbone.", "model.encoder.", "--rename backbone=model.encoder"),
    ],
)
def test_the_prefix_that_would_match_is_suggested(old: str, new: str, option: str) -> None:
    a, b = (weights(prefix + name for name in NET) for prefix in (old, new))
    with pytest.raises(RequestError) as caught:
        match_tensors(a, b, None)
    assert f" {option}." in caught.value.hint
    name, _, value = option.removeprefix("--rename ").partition("=")
    assert len(match_tensors(a, b, {name: value}).pairs) == len(NET)


def test_a_prefix_for_most_of_the_rest_is_suggested_with_the_result() -> None:
    a = weights([*(f"backbone.{name}" for name in NET), "head.weight"])
    b = weights([*(f"encoder.{name}" for name in NET), "head.weight"])
    found = match_tensors(a, b, None)
    assert "--rename backbone=encoder" in found.notes[0]


def test_an_empty_set_has_no_match() -> None:
    with pytest.raises(RequestError, match="B contains no tensors"):
        match_tensors(weights(NET), weights([]), None)


def test_tied_tensors_are_compared_once() -> None:
    names, tied = ["embed", "head", "norm"], {"head": "embed"}
    found = match_tensors(weights(names, tied), weights(names, tied), None)
    assert named(found) == ({"embed": "embed", "norm": "norm"}, [], [])
    assert found.tied == ("head",)


@pytest.mark.parametrize("kept", ["embed", "head"])
def test_a_tied_tensor_that_one_side_lacks_is_no_difference(kept: str) -> None:
    """safetensors files hold one of the names only."""
    tied = weights(["embed", "head", "norm"], {"head": "embed"})
    saved = weights([kept, "norm"])
    other = {"embed": "head", "head": "embed"}[kept]
    for sides in ((tied, saved), (saved, tied)):
        found = match_tensors(*sides, None)
        assert named(found)[1:] == ([], [])
        assert found.tied == (other,)


def test_tensors_that_are_tied_on_one_side_alone_are_both_compared() -> None:
    names = ["embed", "head"]
    found = match_tensors(weights(names, {"head": "embed"}), weights(names), None)
    assert len(found.pairs) == 2


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["fc.weight"], ["fc.weight"]),
        (["fc"], ["fc.weight"]),
        (["body"], NET[1:4]),
        (["body.*"], NET[1:4]),
        (["body.0", "fc"], [*NET[1:3], "fc.weight"]),
        (["!*.bias"], [name for name in NET if "bias" not in name]),
        (["body", "!body.0"], ["body.1.conv.weight"]),
        (["*.weight", "!body"], ["conv1.weight", "fc.weight"]),
    ],
)
def test_patterns_choose_tensors_and_modules(patterns: list[str], chosen: list[str]) -> None:
    wrapped = weights(f"module.{name}" for name in NET)
    for sides in ((weights(NET), wrapped), (wrapped, weights(NET))):
        found = select_pairs(match_tensors(*sides, None), patterns)
        assert [a.name.removeprefix("module.") for a, _ in found.pairs] == chosen


def test_patterns_choose_what_is_alone() -> None:
    pairs = match_tensors(weights(["a.w", "b.w", "c.w"]), weights(["a.w", "d.w"]), None)
    assert named(select_pairs(pairs, ["b", "d"])) == ({}, ["b.w"], ["d.w"])


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    pairs = match_tensors(weights(NET), weights(NET), None)
    with refused(LayerError, message="'body.0.cnv.weight'", hint="Did you mean body.0.conv.weight"):
        select_pairs(pairs, ["body.0.cnv.weight"])


def test_each_name_of_a_tied_tensor_selects_it() -> None:
    tied = {"lm_head.weight": "embed.weight"}
    names = ["embed.weight", "lm_head.weight", "norm.weight"]
    pairs = match_tensors(weights(names, tied), weights(names, tied), None)
    for pattern in ("lm_head", "embed", "embed.weight"):
        assert named(select_pairs(pairs, [pattern])) == ({"embed.weight": "embed.weight"}, [], [])
    assert list(named(select_pairs(pairs, ["!lm_head"]))[0]) == ["embed.weight", "norm.weight"]
    assert list(named(select_pairs(pairs, ["!lm_head", "!embed"]))[0]) == ["norm.weight"]
    with pytest.raises(LayerError) as caught:
        select_pairs(pairs, ["zzzzzzz"])
    assert caught.value.hint == "The names are: embed.weight, lm_head.weight, norm.weight."
