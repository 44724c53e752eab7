"""``hookscope diff`` finds what was planted, and says what it was matched by."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

import hookscope
from hookscope.errors import ForwardError, LayerError, RequestError, StoreError
from tests.model_analysis.diff import nets
from tests.processes import run_python

NETS = str(Path(nets.__file__))
SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
DIGITS = [
    f"{SAMPLES}/digits.py:trained",
    *(f"{SAMPLES}/digits_{kind}" for kind in ("scripted.pt", "traced.pt", "exported.pt2")),
]


@pytest.fixture
def checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    """Weights of the net, and the same with the lowest bit of one weight of the second layer."""
    state = {name: value.clone() for name, value in nets.single().state_dict().items()}
    paths = tmp_path / "a.safetensors", tmp_path / "b.pth"
    save_file(state, paths[0])
    weight = state["body.0.weight"].numpy().reshape(-1)
    weight[17:18].view(np.int32)[...] ^= 1
    torch.save(state, paths[1])
    return paths


# Planted differences


def test_one_bit_of_one_weight_is_found_between_two_checkpoints(checkpoints) -> None:
    sides = f"{NETS}:Net", f"{NETS}:Net"
    found = hookscope.diff(*sides, weights=checkpoints, atol=0, rtol=0)
    assert not found.same and found.first is not None
    assert (found.first.key, [row.verdict for row in found.rows][:2]) == (
        *("body.0/output", ["equal", "equal"]),
    )
    within = hookscope.diff(*sides, weights=checkpoints)  # of float32
    assert within.same and within.first_unequal is not None
    assert within.first_unequal.key == "body.0/output"


def test_a_layer_in_half_precision_is_found() -> None:
    found = hookscope.diff(f"{NETS}:single", f"{NETS}:half")
    assert found.first is not None and found.first.key == "head/output"
    assert (len(found.rows), found.counts["differs"]) == (8, 2)


@pytest.mark.parametrize(
    ("given", "by"), [({"map": {"stem": "first", "body": "trunk"}}, "map"), ({}, "order")]
)
def test_a_renamed_layer_is_matched_by_order_or_by_the_map(given, by) -> None:
    found = hookscope.diff(f"{NETS}:single", f"{NETS}:renamed", **given)
    assert found.same
    matched = {row.key: (row.other, row.by) for row in found.rows}
    assert matched["stem/output"] == ("first/output", by)
    assert matched["body.0/output"] == ("trunk.0/output", by)
    assert matched["act:2/output"] == ("act:2/output", "name")


def test_two_captures_are_compared_and_what_has_no_partner_is_listed(tmp_path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    hookscope.capture(f"{NETS}:single", layers=["!stem"]).save(a)
    hookscope.capture(f"{NETS}:half", layers=["!body"]).save(b)
    found = hookscope.diff(a, b)
    assert not found.same
    assert [t.key for t in (*found.only_a, *found.only_b)] == ["body/output", "stem/output"]
    assert hookscope.diff(a, b, layers=["act", "body*"]).same
    assert not hookscope.diff(a, b, layers=["act", "body"], strict=True).same


# The numbers


def test_models_in_step_give_what_two_captures_give_and_numpy_by_hand(tmp_path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    kinds = ["output", "input"]
    for file, name in zip(files, ("single", "half"), strict=True):
        hookscope.capture(f"{NETS}:{name}", what=kinds).save(file)
    by_files = hookscope.diff(*files)
    by_models = hookscope.diff(f"{NETS}:single", f"{NETS}:half", what=kinds)
    assert by_files.rows == by_models.rows
    a, b = map(load_file, files)
    assert len(by_files.rows) == len(a)
    for row in by_files.rows:
        one, two = (x[row.key].numpy().astype(np.float64) for x in (a, b))
        gap = np.abs(one - two)
        assert row.figures.max_abs == gap.max()
        with np.errstate(all="ignore"):
            assert row.figures.max_rel == np.nanmax(gap / np.abs(one))
        assert row.figures.beyond == np.sum(gap > 1e-5 + 1.3e-6 * np.abs(one))
        snr = 10 * math.log10(np.sum(one**2) / np.sum(gap**2)) if gap.any() else math.inf
        assert row.figures.snr == pytest.approx(snr, rel=1e-9)


@pytest.mark.parametrize("other", DIGITS[1:], ids=["scripted", "traced", "exported"])
def test_eager_scripted_traced_and_exported_give_equal_bits(other) -> None:
    found = hookscope.diff(DIGITS[0], other, input=str(SAMPLES / "five.png"))
    assert found.same
    assert found.counts == {"equal": 7, "close": 0, "differs": 0}
    assert (found.only_a, found.only_b) == ((), ())


def test_two_dtypes_are_judged_by_the_looser_tolerance() -> None:
    found = hookscope.diff(f"{NETS}:single", f"{NETS}:single", dtype=["float32", "bfloat16"])
    assert {(row.atol, row.rtol) for row in found.rows} == {(1e-5, 1.6e-2)}
    assert {row.dtypes for row in found.rows} == {("float32", "bfloat16")}
    loose = hookscope.diff(
        f"{NETS}:single", f"{NETS}:single", dtype=["float32", "bfloat16"], atol=0.1
    )
    assert loose.same and loose.counts["close"] == 8


def test_captures_in_bfloat16_weights_and_dumps_are_read_without_torch(
    tmp_path, clean_environment
) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, dtype in zip(files, ("bfloat16", "float32"), strict=True):
        hookscope.capture(f"{NETS}:single", dtype=dtype).save(file)
    a, b = map(load_file, files)
    by_hand = [
        float((a[key].double() - b[key].double()).abs().max()) for key in hookscope.load(files[0])
    ]
    weights, dump = SAMPLES / "digits.safetensors", tmp_path / "dump.npz"
    np.savez(dump, **{"head": b["head/output"].numpy()})
    probe = (
        "import sys, hookscope; a, b, weights, dump = sys.argv[1:];"
        "found = hookscope.diff(a, b); assert hookscope.diff(b, dump, what='output').same;"
        "assert hookscope.diff(weights, weights).same;"
        "print('torch' in sys.modules, [row.figures.max_abs for row in found.rows])"
    )
    done = run_python("-c", probe, *files, weights, dump, env=clean_environment, status=0)
    loaded, _, numbers = done.stdout.partition(" ")
    assert (loaded, json.loads(numbers)) == ("False", by_hand)


def test_nan_in_one_is_a_difference_and_in_both_only_unless_allowed() -> None:
    one = hookscope.diff(f"{NETS}:single", f"{NETS}:with_nan")
    assert one.first is not None
    assert (one.first.key, one.first.reason) == ("head/output", "NaN in B alone: 2")
    both = hookscope.diff(f"{NETS}:with_nan", f"{NETS}:with_nan")
    assert both.first is not None and both.first.key == "head/output"
    assert hookscope.diff(f"{NETS}:with_nan", f"{NETS}:with_nan", equal_nan=True).same


def test_a_capture_of_gradients_is_compared_with_all_that_it_holds(tmp_path) -> None:
    file = tmp_path / "a.safetensors"
    hookscope.grads(f"{NETS}:single", loss="sum", what=["output", "param"]).save(file)
    copied = shutil.copy(file, tmp_path / "b.safetensors")
    found = hookscope.diff(file, copied)
    keys = {row.key for row in found.rows}
    assert {"stem/weight.grad", "head/output.grad", "./input.0.grad"} <= keys
    assert found.same


# What is asked for


def test_layers_types_and_depth_choose_rows() -> None:
    def keys(**choice) -> list[str]:
        found = hookscope.diff(f"{NETS}:single", f"{NETS}:renamed", **choice)
        return [row.key for row in found.rows]

    assert keys(layers="body*") == ["body.0/output", "body.1/output", "body/output"]
    assert keys(types="Conv2d") == ["stem/output", "body.0/output"]
    assert keys(depth=0) == ["./output"]
    assert "body/output" not in keys(leaves=True)
    with pytest.raises(LayerError, match="stm"):
        keys(layers="stm")
    with pytest.raises(RequestError, match="of A"):
        keys(layers="trunk*")


def test_weights_given_once_go_to_the_model_that_takes_them(checkpoints) -> None:
    found = hookscope.diff(
        f"{SAMPLES}/digits.py:DigitsCNN",
        f"{SAMPLES}/digits_scripted.pt",
        weights=str(SAMPLES / "digits.safetensors"),
    )
    assert found.same
    assert found.a["model"]["weights"].endswith("digits.safetensors")
    twice = hookscope.diff(f"{NETS}:Net", f"{NETS}:Net", weights=[str(p) for p in checkpoints])
    assert [side["model"]["blake3"] for side in (twice.a, twice.b)] == [
        blake3(path.read_bytes()).hexdigest() for path in checkpoints
    ]


def test_arguments_that_come_twice_are_as_and_bs() -> None:
    from hookscope.specs.diff_request import (
        PAIRED_OPTIONS,
        parse_pairs_for_both,
        split_paired_options,
    )
    from hookscope.specs.value_readers import read_arguments

    pair = parse_pairs_for_both(["a=1", "b=2", "a=3"], read_arguments)
    values = {**dict.fromkeys(PAIRED_OPTIONS, ()), "model_args": pair, "partial": False}
    sides = split_paired_options(values, (f"{NETS}:Net", f"{NETS}:Net"))
    assert [side["model_args"] for side in sides] == [{"a": "1", "b": "2"}, {"a": "3", "b": "2"}]
    assert parse_pairs_for_both(["a=1"], read_arguments) == {"a": "1"}


def test_the_errors_of_the_library_are_its_own(tmp_path) -> None:
    with pytest.raises(ForwardError, match=r"^A: .* head") as caught:
        hookscope.diff(f"{NETS}:broken", f"{NETS}:single")
    assert caught.value.layer == "head"
    (tmp_path / "x.safetensors").write_bytes((SAMPLES / "five.safetensors").read_bytes()[:-9])
    with pytest.raises(StoreError):
        hookscope.diff(SAMPLES / "five.safetensors", tmp_path / "x.safetensors")
