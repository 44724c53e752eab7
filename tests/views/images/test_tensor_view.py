"""What one tensor is said to hold, against numpy over the whole of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from hookscope.results.numpy_stats import blocks, summarize
from hookscope.specs.tensor_key import Index
from hookscope.stores.capture_file import open_capture
from hookscope.views.images.tensor_view import (
    TensorView,
    histogram,
    largest,
    read_tensor_view,
    to_full_index,
)
from tests.views.text.samples import captured


def looked(tmp_path: Path, tensor: Tensor, index: Index = (...,)) -> TensorView:
    captured({"a": tensor}).save(tmp_path / "a")
    return read_tensor_view(open_capture(tmp_path / "a"), "a/output", index)


def bins_of(values: np.ndarray, bins: int = 16) -> list[int]:
    return [one.count for one in histogram(blocks(values), summarize(blocks(values)), bins)]


def test_a_histogram_is_numpys() -> None:
    # Multiples of a power of two, so that no entry lies on an edge by rounding alone.
    values = np.random.default_rng(0).integers(-2048, 2048, 400_000) / 128 + 1 / 512
    counts, edges = np.histogram(values, 16)
    stats = summarize(blocks(values))
    found = histogram(blocks(values), stats)
    assert [one.count for one in found] == counts.tolist()
    assert [one.low for one in found] == pytest.approx(edges[:-1].tolist())
    assert [one.high for one in found] == pytest.approx(edges[1:].tolist())


def test_few_integers_have_a_bin_each() -> None:
    found = histogram(blocks(np.array([3, 5, 5])), summarize(blocks(np.array([3, 5, 5]))))
    assert [(one.low, one.high, one.count) for one in found] == [(3, 3, 1), (4, 4, 0), (5, 5, 2)]
    assert bins_of(np.array([True, False, True])) == [1, 2]
    assert bins_of(np.array([7, 7])) == [2]


def test_every_finite_entry_is_in_one_bin() -> None:
    top = np.finfo(np.float64).max
    for values in (
        np.array([-top, top, 0.0]),
        np.array([1.0, np.nextafter(1, 2)]),
        np.array([0.0, 5e-324]),
        np.array([2.5]),
        np.array([np.nan, 1.0, np.inf, 2.0]),
    ):
        assert sum(bins_of(values)) == np.isfinite(values).sum()
    assert bins_of(np.array([np.nan])) == bins_of(np.array([])) == []


@given(
    hnp.arrays(np.float32, st.integers(0, 40), elements=st.sampled_from([0, 1, -1, 2, -3, np.nan])),
    st.integers(1, 6),
)
def test_the_largest_entries_are_those_of_a_sort(values: np.ndarray, pieces: int) -> None:
    sizes = np.abs(np.nan_to_num(values))
    order = [i for i in np.argsort(-sizes, kind="stable") if sizes[i]]
    expected = [(int(i), float(values[i])) for i in order[:4]]
    assert largest(np.array_split(values, pieces), 4) == expected


def test_the_largest_come_from_every_block_and_the_first_among_equals() -> None:
    values = np.ones(400_000, np.float32)
    values[[5, 150_000, 399_999]] = [-3, 4, 3]
    assert largest(blocks(values), 4) == [(150_000, 4.0), (5, -3.0), (399_999, 3.0), (0, 1.0)]


@pytest.mark.parametrize(
    "index",
    [(...,), (1,), (-1, ..., 2), (slice(None, None, -1), 1), (slice(1, 3), ..., slice(None, 2))],
    ids=str,
)
def test_entries_are_told_by_their_place_in_the_whole(tmp_path: Path, index: Index) -> None:
    tensor = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    part = tensor.numpy()[index]
    found = looked(tmp_path, tensor, index)
    assert found.shape == part.shape
    assert [tensor[entry.index].item() for entry in found.largest] == [
        entry.value for entry in found.largest
    ]
    assert abs(found.largest[0].value) == np.abs(part).max()
    assert found.stats.mean == pytest.approx(part.astype(np.float64).mean())
    assert found.stats.norm == pytest.approx(np.linalg.norm(part.astype(np.float64)))


@given(st.data())
def test_a_place_in_a_part_is_found_again_in_the_whole(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=5))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=False))
    index = index if isinstance(index, tuple) else (index,)
    whole = np.arange(np.prod(shape)).reshape(shape)
    part = np.asarray(whole[index])
    for place in np.ndindex(part.shape):
        assert whole[to_full_index(place, index, shape)] == part[place]


def test_what_is_not_finite_is_counted_and_placed(tmp_path: Path) -> None:
    tensor = torch.ones(2, 3, 4)
    tensor[1, 0, 2] = float("nan")
    tensor[1, 2, 3] = float("nan")
    tensor[0, 1, 1] = float("-inf")
    found = looked(tmp_path, tensor)
    assert (found.stats.nan, found.stats.inf) == (2, 1)
    assert (found.first_nan, found.first_inf) == ((1, 0, 2), (0, 1, 1))
    found = looked(tmp_path, tensor, (1, slice(1, None)))
    assert (found.first_nan, found.first_inf) == ((1, 2, 3), None)


def test_one_number_and_nothing_at_all_can_be_looked_at(tmp_path: Path) -> None:
    found = looked(tmp_path, torch.tensor(2.5))
    assert (found.shape, found.largest[0].index, found.largest[0].value) == ((), (), 2.5)
    found = looked(tmp_path, torch.ones(0, 3))
    assert (found.histogram, found.largest, found.stats.numel) == ((), (), 0)


def test_bfloat16_is_looked_at_by_its_values(tmp_path: Path) -> None:
    tensor = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = looked(tmp_path, tensor, (slice(2, 4),))
    assert found.stats.max == tensor[2:4].float().max().item()
    assert found.record.dtype == "bfloat16"
