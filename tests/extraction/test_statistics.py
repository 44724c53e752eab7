"""Statistics of channels compared with numpy over the whole data, however it is split."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope.extraction.channel_statistics import (
    BIN_TOLERANCE,
    QUANTILES,
    ZERO_BELOW,
    ChannelStatistics,
    DatasetStatistics,
    bin_numbers,
)


def described(values: torch.Tensor, cuts: list[int], top: int = 3) -> ChannelStatistics:
    """The statistics of the parts between ``cuts``, merged from the left."""
    known = DatasetStatistics(top)
    for first, last in zip([0, *cuts], [*cuts, len(values)], strict=True):
        part = DatasetStatistics(top)
        part.update("a", values[first:last], range(first, last))
        known.merge(part)
    return known.channels["a"]


def agree(one: ChannelStatistics, other: ChannelStatistics) -> None:
    """Assert equality, up to rounding in mean and std."""
    for name in ("count", "min", "max", "zeros", "positive", "nan", "inf", "bins", "first_bin"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.top_values, other.top_values)
    assert torch.equal(one.top_rows, other.top_rows)
    size = 1 + one.min.abs().maximum(one.max.abs()).nan_to_num(posinf=0)
    assert ((one.mean - other.mean).abs() <= 1e-12 * size).all()
    both = torch.where(one.count > 0, one.std, 0), torch.where(other.count > 0, other.std, 0)
    assert ((both[0] - both[1]).abs() <= 1e-7 * size).all()  # the root of a rounding of squares


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 1.0, 1e-30])


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.lists(NUMBERS, min_size=n * 6, max_size=n * 6),
            st.lists(st.integers(0, n), max_size=3).map(sorted),
            st.lists(st.integers(0, n), max_size=3).map(sorted),
        )
    )
)
def test_it_does_not_matter_how_the_rows_are_parted(case) -> None:
    numbers, cuts, others = case
    values = torch.tensor(numbers).clamp(-1e15, 1e15).reshape(-1, 2, 3)
    agree(described(values, cuts), described(values, others))


def test_merging_is_associative_and_knows_no_left_and_right() -> None:
    values = torch.randint(-3, 3, (9, 4, 5), generator=torch.Generator().manual_seed(0)) / 3
    a, b, c = (ChannelStatistics.of(values[i : i + 3], range(i, i + 3), 5) for i in range(0, 9, 3))
    agree(a.merge(b).merge(c), a.merge(b.merge(c)))
    agree(a.merge(b), b.merge(a))


def test_a_channel_is_dead_if_all_its_values_are_zero() -> None:
    values = torch.tensor(
        [[0.0, -1.0, 0.0, torch.nan, 2.0], [-0.0, 0.0, torch.nan, torch.nan, 0.0]]
    )
    assert described(values[..., None], [1]).dead.tolist() == [True, False, False, False, False]


def test_numbers_are_those_of_numpy_over_the_whole() -> None:
    random = np.random.default_rng(1)
    array = random.normal(1e6, 1e-1, size=(40, 5, 9)).astype(np.float32)  # large mean, small spread
    array[:, 1] = np.maximum(random.normal(size=(40, 9)), 0)
    array[:, 2] = -np.abs(array[:, 2])
    array[3, 3, 3], array[4, 3, 4], array[:, 4] = np.nan, np.inf, np.nan
    found = described(torch.tensor(array), [7, 8, 30])
    for channel in range(4):
        flat = array[:, channel].astype(np.float64).ravel()
        sound = flat[np.isfinite(flat)]
        assert found.count[channel] == len(sound)
        np.testing.assert_allclose(found.mean[channel], sound.mean(), rtol=1e-14)
        np.testing.assert_allclose(found.std[channel], sound.std(), rtol=1e-6)
        assert (found.min[channel], found.max[channel]) == (sound.min(), sound.max())
        assert found.zeros[channel] == (sound == 0).sum()
    assert (found.nan.tolist(), found.inf.tolist()) == ([0, 0, 0, 1, 360], [0, 0, 0, 1, 0])
    assert found.dead.tolist() == [False, False, False, False, False]
    assert found.count[4] == 0
    assert found.std[4].isnan()
    assert found.quantiles()[4].isnan().all()
    assert found.top_rows[4].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e5, 1e30])
@pytest.mark.parametrize("kind", ["normal", "relu", "skewed", "constant"])
def test_quantiles_are_within_the_bound_that_is_told(kind, scale) -> None:
    random = np.random.default_rng(2)
    array = {
        "normal": lambda: random.normal(size=(50, 3, 40)),
        "relu": lambda: np.maximum(random.normal(size=(50, 3, 40)), 0),
        "skewed": lambda: -random.lognormal(0, 3, size=(50, 3, 40)),
        "constant": lambda: np.full((50, 3, 40), 0.7),
    }[kind]()
    array = (array * scale).astype(np.float32)
    found = described(torch.tensor(array), [20]).quantiles().numpy()
    flat = array.transpose(1, 0, 2).reshape(3, -1).astype(np.float64)
    true = np.quantile(flat, QUANTILES, axis=1, method="inverted_cdf").T
    assert (np.abs(found - true) <= np.maximum(np.abs(true) * BIN_TOLERANCE, ZERO_BELOW)).all()


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e38, 1e60, 1e140, 1e300])
def test_quantiles_of_double_precision_are_within_the_bound_too(scale) -> None:
    array = np.random.default_rng(2).normal(size=(50, 3, 40)) * scale
    found = described(torch.tensor(array), [20]).quantiles().numpy()
    flat = array.transpose(1, 0, 2).reshape(3, -1)
    true = np.quantile(flat, QUANTILES, axis=1, method="inverted_cdf").T
    assert (np.abs(found - true) <= np.maximum(np.abs(true) * BIN_TOLERANCE, ZERO_BELOW)).all()


def test_the_top_inputs_are_those_of_a_sort_and_of_equal_ones_the_first() -> None:
    values = torch.randint(0, 4, (30, 5, 2), generator=torch.Generator().manual_seed(0)).float()
    found = described(values, [4, 11], top=6)
    peaks = values.amax(2).numpy()
    for channel in range(5):
        order = np.argsort(-peaks[:, channel], kind="stable")[:6]
        assert found.top_rows[channel].tolist() == order.tolist()
        assert found.top_values[channel].tolist() == peaks[order, channel].tolist()


def test_a_large_batch_is_taken_in_parts(monkeypatch) -> None:
    values = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(0))
    whole = described(values, [])
    monkeypatch.setattr("hookscope.extraction.channel_statistics._BLOCK", 40)
    agree(described(values, []), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_every_dtype_is_described_exactly(dtype) -> None:
    values = (torch.randn(20, 2, 9, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    found = described(values, [5])
    np.testing.assert_allclose(found.mean, values.double().mean((0, 2)), rtol=1e-12)
    assert torch.equal(found.max, values.double().amax((0, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_number_lies_in_the_same_bin_in_any_precision(dtype) -> None:
    random = torch.Generator().manual_seed(0)
    powers = torch.randint(-149, 127, (5000,), generator=random)
    values = torch.ldexp(torch.randn(5000, generator=random), powers).to(dtype)
    values = values[values.isfinite()]
    assert torch.equal(bin_numbers(values), bin_numbers(values.double()))
