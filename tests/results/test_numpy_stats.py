"""Statistics of arrays and of tensors, compared with numpy and with each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hookscope.results import numpy_stats as arrays
from hookscope.results.stats import BLOCK, Moments, Stats
from hookscope.tensors import tensor_stats as summaries
from tests.results.test_stats import by_numpy, demand_close

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


@pytest.mark.parametrize(
    ("low", "high", "possible"),
    [
        (None, None, True),
        (None, 1.0, False),
        (1.0, None, False),
        (1.0, 1.0, True),
        (2.0, 1.0, False),
        (-math.inf, 1.0, False),
        (1.0, math.inf, False),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (-3, 2, True),
    ],
)
def test_bounds_are_finite_and_in_order_or_both_missing(low: Any, high: Any, possible: Any) -> None:
    assert made(min=low, max=high).are_possible() is possible


def test_moments_of_blocks_are_those_of_the_whole() -> None:
    random = np.random.default_rng(3)
    moments = Moments()
    parts = [random.normal(3, 2, size) for size in (5, 1, 40, 7)]
    for part in parts:
        mean = float(part.mean())
        spread, square = float(((part - mean) ** 2).sum()), float((part**2).sum())
        moments.merge(len(part), mean, spread, square, float(part.min()), float(part.max()))
    demand_close(moments.stats(53, False), by_numpy(np.concatenate(parts)))


def test_moments_without_an_entry_have_no_mean() -> None:
    moments = Moments()
    moments.nan, moments.inf, moments.zeros = 2, 3, 0
    assert moments.stats(5, False) == Stats(5, None, None, None, None, None, 0, 2, 3)


LONG = 2 * BLOCK + 11  # three blocks


def long(kind: str) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(5).normal(2, 3, LONG)
    if kind == "holes in every block":
        values[::1000] = np.nan
        values[1::1001] = np.inf
        values[2::1002] = -np.inf
        values[3::1003] = 0
    if kind == "a block without a finite entry":
        values[:BLOCK] = np.nan
    if kind == "zeros":
        values[values < 0] = 0
    if kind == "integers":
        return values.astype(np.int32)
    return values > 2 if kind == "bools" else values


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "zeros",
        "holes in every block",
        "a block without a finite entry",
        "integers",
        "bools",
    ],
)
def test_several_blocks_are_described_as_numpy_does(kind: str) -> None:
    values = long(kind)
    expected = by_numpy(values)
    demand_close(summaries.summarize(torch.from_numpy(values)), expected)
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
    from_torch = summaries.summarize(torch.from_numpy(values))
    size = np.abs(values) if values.dtype.kind == "c" else values
    demand_close(from_numpy, by_numpy(size))
    demand_close(from_torch, by_numpy(size))
    assert type(from_numpy.min) is type(from_torch.min)
    assert type(from_torch.max) is (int if values.dtype.kind in "biu" else float)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.int64, torch.uint32])
def test_the_largest_whole_numbers_keep_every_digit(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    x = torch.tensor([most, most - 1], dtype=dtype)
    assert (summaries.summarize(x).min, summaries.summarize(x).max) == (most - 1, most)
    found = arrays.summarize(arrays.blocks(x.numpy()))
    assert (found.min, found.max) == (most - 1, most)


def test_an_array_is_gone_through_in_order_whatever_its_layout() -> None:
    base = np.arange(2 * BLOCK + 6).reshape(2, -1)
    for view in (base, base.T, base[:, ::-1], base[::-1, ::2], base[:1]):
        found = [block.copy() for block in arrays.blocks(view)]
        assert all(block.ndim == 1 and block.size <= BLOCK for block in found)
        assert np.array_equal(np.concatenate(found), view.ravel(order="C"))
    assert list(arrays.blocks(np.zeros((0, 3)))) == []


def test_a_tensor_is_gone_through_in_order_and_in_blocks() -> None:
    x = torch.arange(2 * BLOCK + 6).reshape(2, -1)
    for view in (x, x.T, x[:, ::3]):
        found = list(summaries.numpy_blocks(view))
        assert all(block.ndim == 1 and block.size <= BLOCK for block in found)
        assert np.array_equal(np.concatenate(found), view.numpy().ravel())


@pytest.mark.parametrize(
    ("dtype", "as_numpy"),
    [
        (torch.bfloat16, np.float32),
        (torch.float8_e4m3fn, np.float32),
        (torch.float16, np.float16),
        (torch.float64, np.float64),
        (torch.int8, np.int8),
        (torch.bool, np.bool_),
        (torch.complex64, np.complex64),
    ],
)
def test_blocks_are_of_the_tensors_dtype_where_numpy_has_it(dtype: Any, as_numpy: Any) -> None:
    [block] = summaries.numpy_blocks(torch.tensor([0.0, 1.0, 2.0]).to(dtype))
    assert block.dtype == as_numpy
    expected = [False, True, True] if dtype is torch.bool else [0, 1, 2]
    assert block.tolist() == expected


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
    summaries.summarize(y), list(summaries.numpy_blocks(y))
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
