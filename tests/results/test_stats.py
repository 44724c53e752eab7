"""Statistics compared with numpy in float64, for every dtype and across blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookscope.errors import HookscopeError
from hookscope.results import stats
from hookscope.results.stats import Stats
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


@pytest.mark.parametrize("size", [stats.BLOCK - 1, stats.BLOCK, 3 * stats.BLOCK + 17])
def test_blocks_are_merged_without_loss(size: int) -> None:
    values = np.random.default_rng(0).normal(1e6, 1e-2, size)
    demand_close(summarize(torch.from_numpy(values)), by_numpy(values))


def test_half_precision_is_accumulated_in_more() -> None:
    half = torch.full((100_000,), 300.0, dtype=torch.float16)  # the sum overflows float16
    found = summarize(half)
    assert found.mean == 300 and found.std == 0
    brain = torch.full((4097,), 1.0, dtype=torch.bfloat16)  # counting stops at 256 in bfloat16
    assert summarize(brain).mean == 1
    assert summarize(brain).norm == pytest.approx(math.sqrt(4097))


def test_whole_numbers_keep_every_digit_of_their_bounds() -> None:
    found = summarize(torch.tensor([2**62 + 1, -(2**62) - 1]))
    assert (found.min, found.max) == (-(2**62) - 1, 2**62 + 1)


def test_nan_and_infinities_are_counted_and_leave_the_rest_visible() -> None:
    found = summarize(torch.tensor([math.nan, math.inf, -math.inf, 1.0, 3.0]))
    assert (found.nan, found.inf, found.mean, found.min, found.max) == (1, 2, 2, 1, 3)


def test_a_tensor_without_finite_entries_has_no_mean() -> None:
    for values in (torch.empty(0, 3), torch.full((2,), math.nan)):
        found = summarize(values)
        assert found.mean is found.std is found.min is found.max is found.norm is None
        assert found.zero_share == 0


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
