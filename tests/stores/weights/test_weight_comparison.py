"""Sets of weights in real files of any format, compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from hookscope.errors import WeightsFileError
from hookscope.file_analysis.weight_diff import WeightChange, WeightDiff, compare_weights
from hookscope.specs.weight_options import WeightDiffOptions
from hookscope.stores.weights.open_weights import open_weights
from hookscope.views.text.text_table import TextOptions
from hookscope.views.weight_diff import weight_diff_lines
from tests.stores.weights.saved_weights import (
    save_gguf,
    save_npz,
    save_safetensors,
    save_set,
    save_torch,
)

State = dict[str, Tensor]


def state(seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(16, 3, 3, 3, generator=generator),
        "fc.weight": torch.randn(300, 1000, generator=generator),  # more than one window
        "fc.bias": torch.randn(300, generator=generator),
        "scale": torch.tensor(0.5),
        "none": torch.zeros(0, 4),
        "zeros": torch.zeros(7),
    }


def saved(path: Path, tensors: State) -> Path:
    """A file of the format that its name says."""
    if path.suffix == ".safetensors":
        return save_safetensors({name: tensor.clone() for name, tensor in tensors.items()}, path)
    if path.suffix == ".npz":
        return save_npz(tensors, path)
    if path.suffix == ".gguf":
        return save_gguf(path, {name: tensor.numpy() for name, tensor in tensors.items()})
    return save_torch(tensors, path)


def compared(a: Path | str, b: Path | str, **options: Any) -> WeightDiff:
    return compare_weights(open_weights(a), open_weights(b), WeightDiffOptions(**options))


def row_of(found: WeightDiff, name: str) -> WeightChange:
    [row] = [row for row in found.rows if row.name == name]
    return row


def changed(tensors: State) -> State:
    """One entry of one tensor, a whole tensor, and one that was zero."""
    copy = {name: tensor.clone() for name, tensor in tensors.items()}
    copy["fc.weight"][299, 999] += 0.25
    copy["conv.weight"] *= 1.5
    copy["zeros"][3] = 2
    return copy


@pytest.mark.parametrize("one", [".safetensors", ".pth", ".npz"])
@pytest.mark.parametrize("other", [".safetensors", ".pth", ".npz"])
def test_any_two_formats_are_compared(tmp_path: Path, one: str, other: str) -> None:
    a = saved(tmp_path / f"a{one}", state())
    assert compared(a, saved(tmp_path / f"same{other}", state())).same
    found = compared(a, saved(tmp_path / f"b{other}", changed(state())))
    assert [row.name for row in found.rows[:3]] == ["conv.weight", "fc.weight", "zeros"]
    assert (found.same, found.counts) == (False, {"equal": 3, "close": 0, "differs": 3})
    conv, fc, zeros = (row_of(found, n).measures for n in ("conv.weight", "fc.weight", "zeros"))
    assert conv and fc and zeros
    assert (conv.distance, conv.norm_change) == pytest.approx((0.5, 0.5), rel=1e-6)
    norm = float(np.linalg.norm(state()["fc.weight"].double().numpy()))
    assert (fc.changed, fc.largest) == (1, pytest.approx(0.25, rel=1e-6))
    assert fc.distance == pytest.approx(fc.largest / norm, rel=1e-12)
    assert row_of(found, "fc.weight").share == 1 / 300_000
    assert (zeros.distance, zeros.norm_change, zeros.cosine) == (math.inf, None, None)
    assert found.total.changed == 432 + 1 + 1
    assert found.numel == sum(tensor.numel() for tensor in state().values())


def test_a_transposed_square_tensor_is_compared_as_stored(tmp_path: Path) -> None:
    wide, square = torch.randn(16, 48), torch.randn(16, 16)
    a = saved(tmp_path / "a.safetensors", {"wide": wide, "square": square})
    found = compared(a, saved(tmp_path / "b.pth", {"wide": wide.t(), "square": square.t()}))
    assert found.counts == {"equal": 0, "close": 0, "differs": 2}
    row = row_of(found, "wide")
    assert (row.shapes, row.measures) == (((16, 48), (48, 16)), None)
    assert row_of(found, "square").measures.changed == 16 * 16 - 16  # but the diagonal


def test_gguf_is_compared_by_its_dequantised_values(tmp_path: Path) -> None:
    tensors = {"fc.weight": torch.randn(64, 256), "fc.bias": torch.randn(64)}
    a = saved(tmp_path / "a.safetensors", tensors)
    assert compared(a, saved(tmp_path / "same.gguf", tensors)).same
    packed = gguf.quants.quantize(tensors["fc.weight"].numpy(), gguf.GGMLQuantizationType.Q8_0)
    packs = {"fc.weight": packed, "fc.bias": tensors["fc.bias"].numpy()}
    save_gguf(tmp_path / "q.gguf", packs, **{"fc.weight": gguf.GGMLQuantizationType.Q8_0})
    row, bias = compared(a, tmp_path / "q.gguf").rows
    values = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0).astype("f8")
    exact = tensors["fc.weight"].double().numpy()
    assert (row.name, row.dtypes, bias.verdict) == ("fc.weight", ("float32", "q8_0"), "equal")
    assert row.measures and row.measures.distance == pytest.approx(
        np.linalg.norm(values - exact) / np.linalg.norm(exact), rel=1e-12
    )
    assert 0 < row.measures.distance < 0.01


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool],
)
def test_another_dtype_is_compared_by_value(tmp_path: Path, dtype: torch.dtype) -> None:
    wide = torch.tensor([[0.0, 1.0, 3.0, -2.75], [0.3, -0.001, 100.7, 1.0]])
    narrow = wide.to(dtype)
    a = saved(tmp_path / "a.safetensors", {"w": wide, "v": narrow.float()})
    b = saved(tmp_path / "b.safetensors", {"w": narrow, "v": narrow})
    found = compared(a, b)
    row, same = row_of(found, "w"), row_of(found, "v")
    gap = (narrow.double() - wide.double()).numpy()
    assert row.dtypes == ("float32", str(dtype).removeprefix("torch."))
    assert row.measures and row.measures.largest == np.abs(gap).max()
    assert row.measures.distance == pytest.approx(
        np.linalg.norm(gap) / np.linalg.norm(wide.double().numpy()), rel=1e-13
    )
    assert row.measures.changed == np.count_nonzero(gap)
    assert same.verdict == "equal" and row.verdict == "differs"
    assert row_of(compared(a, b, strict=True), "v").verdict == "differs"


def test_a_sharded_set_is_the_same_as_the_single_file(tmp_path: Path) -> None:
    tensors = state()
    single = saved(tmp_path / "single.safetensors", tensors)
    found = compared(single, save_set(tensors, tmp_path / "shards"))
    assert found.same and len(found.rows) == 6 and "2 files" in found.b.kind


def test_a_part_of_a_checkpoint_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "run.pth"
    torch.save({"model": changed(state()), "ema": state(), "epoch": 3}, path)
    plain = saved(tmp_path / "plain.safetensors", state())
    assert compared(f"{path}#ema", plain).same
    assert not compared(f"{path}#model", plain).same
    assert not compared(f"{path}#model", f"{path}#ema").same


def test_transposed_and_tied_tensors_of_a_checkpoint_are_read_right(tmp_path: Path) -> None:
    weight = torch.randn(40, 30)
    tied = saved(tmp_path / "a.pth", {"embed": weight, "head": weight, "t": weight.t()})
    apart = saved(
        tmp_path / "b.safetensors",
        {"embed": weight.clone(), "head": weight.clone(), "t": weight.t().clone()},
    )
    found = compared(tied, apart)
    assert found.same and len(found.rows) == 3  # in B they are two tensors
    assert compared(tied, tied).tied == ("head",)


def test_shape_changes_come_first_and_then_nan_and_infinities(tmp_path: Path) -> None:
    b = changed(state())
    b["fc.bias"] = torch.zeros(10)
    b["scale"] = torch.tensor(math.inf)
    b["conv.weight"][0, 0, 0, 0] = math.nan
    files = saved(tmp_path / "a.safetensors", state()), saved(tmp_path / "b.safetensors", b)
    found = compared(*files)
    assert found.rows[0].name == "fc.bias"
    assert {row.name for row in found.rows[1:3]} == {"scale", "conv.weight"}
    assert [row.name for row in found.rows[3:5]] == ["fc.weight", "zeros"]
    bias, conv = found.rows[0], row_of(found, "conv.weight")
    assert (bias.measures, bias.share, bias.shapes) == (None, None, ((300,), (10,)))
    assert conv.measures and (conv.measures.nan_b, conv.verdict) == (1, "differs")


def test_nan_in_both_is_equal(tmp_path: Path) -> None:
    tensors = state() | {"nan": torch.tensor([math.nan, 1.0, math.inf])}
    a = saved(tmp_path / "a.safetensors", tensors)
    b = saved(tmp_path / "b.pth", tensors)
    found = compared(a, b)
    assert found.same and found.total.nan_both == 1


def test_a_tolerance_decides_what_differs(tmp_path: Path) -> None:
    tensors = {"w": torch.tensor([1.0, 2.0, 4.0])}
    near = {"w": torch.tensor([1.0, 2.125, 4.25])}
    a, b = saved(tmp_path / "a.npz", tensors), saved(tmp_path / "b.npz", near)
    for options, verdict, beyond in (
        ({}, "differs", 2),
        ({"atol": 0.125}, "differs", 1),
        ({"atol": 0.25}, "close", 0),
        ({"rtol": 0.0625}, "close", 0),
        ({"rtol": 0.05, "atol": 0.01}, "differs", 2),
    ):
        found = compared(a, b, **options)
        [row] = found.rows
        assert row.measures and (row.verdict, row.measures.beyond) == (verdict, beyond), options
        assert row.measures.changed == 2
        assert found.same == (verdict == "close")


def test_a_missing_tensor_is_a_difference(tmp_path: Path) -> None:
    fewer = {name: tensor for name, tensor in state().items() if name != "scale"}
    a, b = saved(tmp_path / "a.pth", state()), saved(tmp_path / "b.pth", fewer)
    for sides, only in (((a, b), (["scale"], [])), ((b, a), ([], ["scale"]))):
        found = compared(*sides)
        assert [[t.name for t in side] for side in (found.only_a, found.only_b)] == list(only)
        assert not found.same and found.counts["differs"] == 0
        assert compared(*sides, layers=["!scale"]).same


def test_totals_are_those_of_all_tensors_joined(tmp_path: Path) -> None:
    one, two = state(1), state(2)
    found = compared(saved(tmp_path / "a.pth", one), saved(tmp_path / "b.pth", two))
    a, b = (torch.cat([t.double().reshape(-1) for t in s.values()]).numpy() for s in (one, two))
    total = found.total
    assert total.distance == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-13)
    assert total.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-12)
    assert (total.largest, total.changed) == (np.abs(a - b).max(), np.count_nonzero(a != b))


def test_progress_is_told_in_megabytes(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", {f"w{n}": torch.zeros(3_000_000) for n in range(4)})
    calls: list[tuple[int, int]] = []
    weights = open_weights(path)
    compare_weights(weights, weights, WeightDiffOptions(), lambda *call: calls.append(call))
    assert calls == [(24, 96), (48, 96), (72, 96), (96, 96)]


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", state())
    weights = open_weights(path)
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(WeightsFileError, match="became shorter"):
        compare_weights(weights, weights, WeightDiffOptions())


def test_rows_that_are_zero_in_a_follow_those_with_a_distance(tmp_path: Path) -> None:
    a = {"zero": torch.zeros(4), "far": torch.ones(4), "near": torch.ones(4), "same": torch.ones(2)}
    b = {"zero": torch.full((4,), 1e-9), "far": torch.full((4,), 3.0), "near": torch.ones(4) * 1.5}
    b["same"] = a["same"]
    found = compared(saved(tmp_path / "a.pth", a), saved(tmp_path / "b.pth", b))
    assert [row.name for row in found.rows] == ["far", "near", "zero", "same"]
    lines = [line.plain for line in weight_diff_lines(found, TextOptions())]
    [zero] = [line for line in lines if line.startswith("zero")]
    assert zero.rstrip().endswith("A is zero")
