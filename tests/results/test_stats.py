"""Statistics compared with numpy in float64, for every dtype and across blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookscope.errors import HookscopeError
from hookscope.results import numpy_stats as arrays
from hookscope.results.stats import BLOCK, Stats
from hookscope.tensors import tensor_stats as summaries
from hookscope.tensors.tensor_stats import summarize

KINDS = [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, np.bool_]


def by_numpy(values: np.ndarray) -> Stats:
    exact = values.dtype.kind in "biu"
    wide = values.astype(np.float64)
    kept = wide[np.isfinite(wide)]
    nan, inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    zeros = int((wide == 0).sum())
    if not kept.size:
        return Stats(values.size, None, None, None, None, None, zeros, nan, inf)
    low, high = (int(values.min()), int(values.max())) if exact else (kept.min(), kept.max())
    norm = math.sqrt(float(np.dot(kept, kept)))
    return Stats(values.size, kept.mean(), kept.std(), low, high, norm, zeros, nan, inf)


def demand_close(found: Stats, expected: Stats) -> None:
    for name in ("numel", "min", "max", "zeros", "nan", "inf"):
        assert getattr(found, name) == getattr(expected, name), name
    scale = max(abs(expected.min or 0), abs(expected.max or 0), 1e-300)
    for name in ("mean", "std", "norm"):
        got, want = getattr(found, name), getattr(expected, name)
        assert (got is None) == (want is None), name
        if want is not None:
            assert math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-9 * scale), name


moderate = st.floats(-1e4, 1e4, width=16, allow_subnormal=False)
odd = moderate | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


@given(st.data(), st.sampled_from(KINDS))
def test_statistics_agree_with_numpy(data: st.DataObject, kind: type) -> None:
    elements = odd if np.dtype(kind).kind == "f" else None
    shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
    values = data.draw(hnp.arrays(kind, shape, elements=elements))
    demand_close(summarize(torch.from_numpy(np.array(values))), by_numpy(values))


def test_half_precision_is_accumulated_in_more() -> None:
    half = torch.full((100_000,), 300.0, dtype=torch.float16)  # the sum overflows float16
    found = summarize(half)
    assert found.mean == 300 and found.std == 0
    brain = torch.full((4097,), 1.0, dtype=torch.bfloat16)  # counting stops at 256 in bfloat16
    assert summarize(brain).mean == 1
    assert summarize(brain).norm == pytest.approx(math.sqrt(4097))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_other_layouts_are_described_by_their_values() -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert summarize(dense.to_sparse()) == summarize(dense)
    assert summarize(dense.T) == summarize(dense.T.contiguous())
    assert summarize(dense.expand(3, 2, 2)).zeros == 9
    assert summarize(torch.tensor([3 + 4j])).max == 5
    assert summarize(torch.tensor([3 + 4j]).to(torch.complex32)).max == 5
    quantized = torch.quantize_per_tensor(dense, 0.5, 0, torch.quint8)
    assert summarize(quantized) == summarize(dense)


def test_a_meta_tensor_has_no_statistics() -> None:
    with pytest.raises(HookscopeError, match="meta"):
        summarize(torch.empty(2, device="meta"))


FIELDS = {"mean": 0.5, "std": 1.0, "min": -1.0, "max": 2.0, "norm": 3.0}
COUNTS = {"numel": 8, "zeros": 2, "nan": 0, "inf": 0}


def made(**more: Any) -> Stats:
    return Stats(**FIELDS | COUNTS | more)


def test_the_share_of_zeros_and_the_largest_size_are_worked_out() -> None:
    assert (made().zero_share, made().absmax) == (0.25, 2.0)
    assert made(numel=0, zeros=0).zero_share == 0
    assert made(min=-5, max=2).absmax == 5
    assert made(min=None, max=None).absmax is None
    assert made(min=0.0, max=0.0).absmax == 0
    assert Stats(**made().to_json()) == made()


@pytest.mark.parametrize("name", COUNTS)
def test_no_count_is_below_zero(name: str) -> None:
    assert made(**dict.fromkeys(COUNTS, 0)).are_possible()
    assert not made(**{name: -1}).are_possible()


@pytest.mark.parametrize(("low", "high"), [(None, None), (1.0, 1.0), (-3, 2)])
def test_bounds_in_order_or_both_missing_are_possible(low: Any, high: Any) -> None:
    assert made(min=low, max=high).are_possible()


@pytest.mark.parametrize("wrong", [None, -math.inf, math.inf, math.nan])
def test_a_bound_alone_or_not_finite_or_out_of_order_is_not_possible(wrong: Any) -> None:
    assert not made(min=wrong, max=1.0).are_possible()
    assert not made(min=1.0, max=wrong).are_possible()
    assert not made(min=2.0, max=1.0).are_possible()


def with_holes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = values.copy()
    for first, hole in enumerate((np.nan, np.inf, -np.inf, 0)):
        values[first :: 1000 + first] = hole
    return values


@pytest.mark.parametrize(
    "change",
    [
        np.copy,
        lambda values: values / 300 + 1e6,  # far from zero, and close together
        lambda values: values.clip(0),
        with_holes,
        lambda values: np.where(np.arange(values.size) < BLOCK, np.nan, values),
        lambda values: values.astype(np.int32),
        lambda values: values > 2,
    ],
    ids=["plain", "far", "zeros", "holes", "a block of NaN", "integers", "bools"],
)
def test_several_blocks_are_described_as_numpy_does(change: Any) -> None:
    values = change(np.random.default_rng(5).normal(2, 3, 2 * BLOCK + 11))  # three blocks
    expected = by_numpy(values)
    demand_close(summarize(torch.from_numpy(values)), expected)
    demand_close(arrays.summarize(arrays.blocks(values)), expected)


@pytest.mark.parametrize(
    "dtype",
    [*"?bBHILqefdFD"],  # numpy's type codes: bool, int8, uint8 and so on to complex128
)
def test_every_dtype_is_described_alike_from_memory_and_from_a_file(dtype: Any) -> None:
    values = (np.arange(24) % 7 * 3).astype(dtype).reshape(2, 3, 4)
    if values.dtype.kind == "c":
        values = values * np.array(3 + 4j, dtype)
    from_numpy = arrays.summarize(arrays.blocks(values))
    from_torch = summarize(torch.from_numpy(values))
    size = np.abs(values) if values.dtype.kind == "c" else values
    demand_close(from_numpy, by_numpy(size))
    demand_close(from_torch, by_numpy(size))
    assert type(from_numpy.min) is type(from_torch.min)
    assert type(from_torch.max) is (int if values.dtype.kind in "biu" else float)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.int64, torch.uint32])
def test_the_largest_whole_numbers_keep_every_digit(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    x = torch.tensor([most, most - 1], dtype=dtype)
    assert (summarize(x).min, summarize(x).max) == (most - 1, most)
    found = arrays.summarize(arrays.blocks(x.numpy()))
    assert (found.min, found.max) == (most - 1, most)


@pytest.mark.parametrize("view", [(), np.s_[::-1, ::2], np.s_[:1], np.s_[:, ::3]], ids=str)
def test_arrays_and_tensors_are_gone_through_in_order_and_in_blocks(view: Any) -> None:
    array = np.arange(2 * BLOCK + 6).reshape(2, -1)[view]
    for values in (array, array.T):
        found = [block.copy() for block in arrays.blocks(values)]
        found += summaries.numpy_blocks(torch.from_numpy(values.copy("K")))
        assert all(block.ndim == 1 and block.size <= BLOCK for block in found)
        assert np.array_equal(np.concatenate(found), np.concatenate([values.ravel()] * 2))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_plain_tensors_are_dense_and_real() -> None:
    dense = torch.tensor([[0.0, -2.0], [1.0, 0.0]])
    for same in (dense, dense.to_sparse(), dense.to_mkldnn()):
        assert torch.equal(summaries.dense_real(same), dense)
    assert summaries.dense_real(torch.tensor([3 + 4j]).to(torch.complex32)).tolist() == [5.0]
    assert summaries.dense_real(torch.tensor([3e38 + 3e38j])).isfinite().all()
    quantized = torch.quantize_per_tensor(dense, 0.5, 4, torch.qint8)
    assert torch.equal(summaries.dense_real(quantized), dense)


def test_looking_at_a_tensor_adds_nothing_to_its_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    summarize(y), list(summaries.numpy_blocks(y))
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
