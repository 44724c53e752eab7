"""Measures of tensors in files: every dtype, channels, ties, progress, bounded memory."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hookscope.file_analysis.tensor_measures import ChannelSums, find_outliers, measure_weights
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.weight_set import WeightSet
from tests.memory import memory_below

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.bool, torch.complex64),
)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> WeightSet:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return open_weights(path)


def write_hole(path: Path, name: str, dtype: str, shape: tuple[int, ...], size: int) -> Path:
    """A file of one tensor of zeros that takes no room on the disk."""
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_are_those_of_the_values(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randn(40, 5000, generator=torch.Generator().manual_seed(3)) * 3
    if dtype is torch.complex64:
        values = torch.complex(values, values.flip(0))
    values = (values > 1) if dtype is torch.bool else values.to(dtype)
    [measures] = measure_weights(write(tmp_path / "a.safetensors", {"fc.weight": values}))
    wide = values.abs() if dtype.is_complex else values
    wide = wide.double().numpy()
    stats = measures.stats
    assert stats is not None
    assert (stats.numel, stats.zeros, stats.nan, stats.inf) == (
        *(wide.size, int((wide == 0).sum()), 0, 0),
    )
    if not dtype.is_complex:
        assert (stats.min, stats.max) == (wide.min(), wide.max())
    for got, want in (
        *((stats.mean, wide.mean()), (stats.std, wide.std())),
        (stats.norm, math.sqrt(math.fsum(np.square(wide).ravel()))),
    ):
        assert got == pytest.approx(want, rel=1e-6 if dtype.is_complex else 1e-12, abs=1e-12)
    assert (measures.channels is not None) == (dtype.is_floating_point or dtype is torch.int8)


def test_nan_and_infinities_are_counted_and_left_out(tmp_path: Path) -> None:
    values = torch.arange(12.0).reshape(3, 4)
    values[0, 1], values[2, 3], values[1, 1] = torch.nan, torch.inf, -torch.inf
    [measures] = measure_weights(write(tmp_path / "a.safetensors", {"x": values}))
    stats = measures.stats
    assert stats is not None
    assert (stats.nan, stats.inf, stats.min, stats.max) == (1, 2, 0.0, 10.0)
    assert measures.channels is None


def test_entries_that_float16_loses_are_counted(tmp_path: Path) -> None:
    least = 2.0**-24
    values = torch.tensor([0.0, -0.0, least, least / 2, -least / 4, 1.0, -1e-30, torch.nan])
    tensors = {"a": values, "b": values.bfloat16(), "c": values.half(), "d": values.double()}
    small = {one.name: one.small for one in measure_weights(write(tmp_path / "a.st", tensors))}
    assert small == {"a": 3, "b": 3, "c": 0, "d": 3}


@pytest.mark.parametrize("pieces", [1, 7, 64, 1000])
def test_channels_are_measured_whatever_the_blocks(pieces: int) -> None:
    values = np.random.default_rng(0).standard_normal((23, 37))
    values[4], values[9], values[11] = 0, -2.5, np.nan
    sums = ChannelSums((23, 37))
    blocks = np.array_split(values.ravel(), pieces)
    assert sum(block.size for block in sums.watch(blocks)) == values.size
    measures = sums.measures()
    assert measures.zero.tolist() == [4]
    assert measures.constant.tolist() == [9]
    np.testing.assert_allclose(sums.norms, np.linalg.norm(values, axis=1), rtol=1e-14)


def test_the_score_of_an_outlier_is_the_modified_z_score() -> None:
    # By hand: the median of 1..9 and 100 is 5.5, the distances have the median 2.5.
    norms = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    outliers = find_outliers(norms)
    assert outliers is not None
    assert outliers.channels.tolist() == [9]
    assert outliers.scores[0] == pytest.approx(0.6745 * 94.5 / 2.5)
    assert (outliers.norm, outliers.median) == (100, 5.5)


@pytest.mark.parametrize(
    "norms",
    [
        [1.0] * 9 + [2.9],  # an infinite score, but not three times the median
        [1.0] * 6 + [9.0],  # fewer than eight
        [1.0] * 9 + [0.0],  # a zero channel is a finding of its own
        [1.0] * 9 + [np.inf, np.nan],
        [float(n) for n in range(1, 30)],
    ],
)
def test_usual_norms_have_no_outlier(norms: list[float]) -> None:
    assert find_outliers(np.array(norms)) is None


def test_a_tied_tensor_is_read_once(tmp_path: Path) -> None:
    weight = torch.randn(8, 16)
    torch.save({"wte.weight": weight, "head.weight": weight}, tmp_path / "a.pth")
    progress: list[tuple[int, int, str]] = []
    first, second = measure_weights(
        open_weights(tmp_path / "a.pth"), advance=lambda *of: progress.append(of)
    )
    assert first.stats is second.stats
    assert second.tensor.tied_to == "wte.weight"
    assert [name for _, _, name in progress] == ["wte.weight"]


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    weights = write(tmp_path / "a.st", {n: torch.zeros(500_000) for n in ("a", "b", "c")})
    progress: list[tuple[int, int, str]] = []
    list(measure_weights(weights, advance=lambda *of: progress.append(of)))
    assert [done for done, _, _ in progress] == sorted(done for done, _, _ in progress)
    assert progress[-1] == (6, 6, "c")


def test_a_dtype_that_cannot_be_read_is_no_failure(tmp_path: Path) -> None:
    path = write_hole(tmp_path / "a.safetensors", "x.weight", "F6_E2M3", (4, 4), 12)
    [measures] = measure_weights(open_weights(path))
    assert measures.stats is None
    assert "float6_e2m3" in measures.unread


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("BF16", (3000, 10_000), 60_000_000),
        pytest.param("F32", (50_000, 40_000), 8_000_000_000, marks=pytest.mark.exhaustive),
    ],
)
def test_memory_does_not_grow_with_the_tensor(
    tmp_path: Path, dtype: str, shape: tuple[int, int], size: int
) -> None:
    weights = open_weights(write_hole(tmp_path / "a.st", "x.weight", dtype, shape, size))
    with memory_below(40_000_000):
        [measures] = measure_weights(weights)
    assert measures.stats is not None
    assert measures.stats.zeros == measures.stats.numel == shape[0] * shape[1]
