"""Statistics of a dataset, of each channel and of all, compared with numpy over the whole data."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.extraction.channel_statistics import (
    BIN_TOLERANCE,
    HISTOGRAM_EDGES,
    QUANTILES,
    TOP_INPUTS,
    ZERO_BELOW,
    ChannelStatistics,
    DatasetStatistics,
    bin_centers,
    bin_numbers,
    histogram,
)

from .conftest import contents, extract_six_rows, index_of

X = torch.randn(11, 4, 6, generator=torch.Generator().manual_seed(0))
X[0, 0, 0], X[1, 1, 1], X[2, 2, 2] = float("nan"), float("inf"), float("-inf")
X[:, 3] = X[:, 3].abs().neg()
X[5, 0, :] = 0


def known(values: torch.Tensor = X, top: int = TOP_INPUTS) -> ChannelStatistics:
    return ChannelStatistics.of(values, range(len(values)), top)


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


def cases(n: int) -> st.SearchStrategy:
    cuts = st.lists(st.integers(0, n), max_size=3).map(sorted)
    return st.tuples(st.lists(NUMBERS, min_size=n * 6, max_size=n * 6), cuts, cuts)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 8).flatmap(cases))
def test_it_does_not_matter_how_the_rows_are_parted(case) -> None:
    numbers, cuts, others = case
    values = torch.tensor(numbers).clamp(-1e15, 1e15).reshape(-1, 2, 3)
    agree(described(values, cuts), described(values, others))


def test_merging_is_associative_and_knows_no_left_and_right(monkeypatch) -> None:
    values = torch.randint(-3, 3, (9, 4, 5), generator=torch.Generator().manual_seed(0)) / 3
    a, b, c = (ChannelStatistics.of(values[i : i + 3], range(i, i + 3), 5) for i in range(0, 9, 3))
    agree(a.merge(b).merge(c), a.merge(b.merge(c)))
    agree(a.merge(b), b.merge(a))
    whole = known(values)
    monkeypatch.setattr("hookscope.extraction.channel_statistics._BLOCK", 40)  # a batch in parts
    agree(known(values), whole)


def test_a_channel_is_dead_if_all_its_values_are_zero() -> None:
    nan = torch.nan
    values = torch.tensor([[0.0, -1.0, 0.0, nan, 2.0], [-0.0, 0.0, nan, nan, 0.0]])
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
    assert found.dead.tolist() == [False] * 5
    assert found.count[4] == 0 and found.std[4].isnan()
    assert found.quantiles()[4].isnan().all()
    assert found.top_rows[4].tolist() == [-1, -1, -1]


KINDS = {
    "normal": lambda random: random.normal(size=(50, 3, 40)),
    "relu": lambda random: np.maximum(random.normal(size=(50, 3, 40)), 0),
    "skewed": lambda random: -random.lognormal(0, 3, size=(50, 3, 40)),
    "constant": lambda random: np.full((50, 3, 40), 0.7),
}


@pytest.mark.parametrize("scale", [1e-300, 1e-7, 1e-3, 1.0, 1e5, 1e30, 1e60, 1e140, 1e300])
@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_are_within_the_bound_that_is_told(kind: str, scale: float) -> None:
    array = KINDS[kind](np.random.default_rng(2)) * scale
    if 1e-20 < scale < 1e31:
        array = array.astype(np.float32)
    found = described(torch.tensor(array), [20]).quantiles().numpy()
    flat = array.transpose(1, 0, 2).reshape(3, -1).astype(np.float64)
    true = np.quantile(flat, QUANTILES, axis=1, method="inverted_cdf").T
    assert (np.abs(found - true) <= np.maximum(np.abs(true) * BIN_TOLERANCE, ZERO_BELOW)).all()
    if kind == "constant":  # and they lie between the smallest and the largest value
        assert (found == array[0, 0, 0]).all()


def test_quantiles_of_few_values_are_values_that_are_there() -> None:
    few = known(torch.tensor([1.0, 2.0, 4.0, 8.0]).reshape(4, 1, 1))
    found = few.quantiles((0.0, 0.25, 0.26, 1))
    np.testing.assert_allclose(found[0], [1, 1, 2, 8], rtol=BIN_TOLERANCE)


def test_the_top_inputs_are_those_of_a_sort_and_of_equal_ones_the_first() -> None:
    values = torch.randint(0, 4, (30, 5, 2), generator=torch.Generator().manual_seed(0)).float()
    found = described(values, [4, 11], top=6)
    peaks = values.amax(2).numpy()
    for channel in range(5):
        order = np.argsort(-peaks[:, channel], kind="stable")[:6]
        assert found.top_rows[channel].tolist() == order.tolist()
        assert found.top_values[channel].tolist() == peaks[order, channel].tolist()
    values = torch.tensor([5.0, 7.0, 7.0, math.nan, 1.0]).reshape(5, 1, 1)
    found = ChannelStatistics.of(values, [10, 30, 20, 40, 50], 6)
    assert found.top_rows.tolist() == [[20, 30, 10, 50, -1, -1]]
    assert found.top_values.tolist() == [[7, 7, 5, 1, -math.inf, -math.inf]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_every_dtype_is_described_exactly(dtype) -> None:
    values = (torch.randn(20, 2, 9, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    found = described(values, [5])
    np.testing.assert_allclose(found.mean, values.double().mean((0, 2)), rtol=1e-12)
    assert torch.equal(found.max, values.double().amax((0, 2)))


def test_complex_values_are_described_by_their_size() -> None:
    found = known(torch.tensor([[[3 + 4j]], [[0j]]]))
    assert (found.max.item(), found.zeros.item(), found.mean.item()) == (5, 1, 2.5)
    wide = known(torch.tensor([[[3e200 + 4e200j]]], dtype=torch.complex128))
    assert wide.max.item() == pytest.approx(5e200) and wide.inf.item() == 0


# Bins.


def test_edges_are_symmetric_and_double_every_second_step() -> None:
    assert len(HISTOGRAM_EDGES) == 98 and list(HISTOGRAM_EDGES) == sorted(HISTOGRAM_EDGES)
    assert [-edge for edge in reversed(HISTOGRAM_EDGES)] == list(HISTOGRAM_EDGES)
    above = HISTOGRAM_EDGES[49:]
    assert (above[0], above[1], above[-1]) == (2.0**-14, 1.5 * 2.0**-14, 1024.0)
    assert all(above[i + 2] == 2 * above[i] for i in range(len(above) - 2))


def test_a_histogram_counts_each_channel_of_each_row_apart() -> None:
    found, edges = histogram(X), np.array(HISTOGRAM_EDGES, dtype=np.float32)
    assert found.shape == (11, 4, 99) and found.dtype is torch.int32
    for row, channel in np.ndindex(11, 4):
        values = X[row, channel].numpy()
        places = np.searchsorted(edges, values[~np.isnan(values)], side="right")
        assert found[row, channel].tolist() == np.bincount(places, minlength=99).tolist()
    on_edges = histogram(torch.tensor(HISTOGRAM_EDGES, dtype=torch.float64).reshape(1, 1, -1))
    assert on_edges[0, 0].tolist() == [0] + [1] * 98  # each counts above its edge


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fine_bins_rise_with_the_value_and_have_it_near_their_middle(dtype: torch.dtype) -> None:
    size = torch.logspace(-8, 30, 2000, dtype=torch.float64)
    values = torch.cat([-size.flip(0), torch.zeros(1), size]).to(dtype)
    numbers = bin_numbers(values)
    assert numbers.dtype is torch.int64
    assert bool((numbers.diff() >= 0).all())
    assert torch.equal(numbers, -numbers.flip(0))
    off = (bin_centers(numbers) - values.double()).abs()
    assert bool((off <= (values.double().abs() * BIN_TOLERANCE).clamp(min=ZERO_BELOW)).all())


def test_a_doubling_has_sixteen_bins_and_what_is_tiny_lies_around_zero() -> None:
    assert (BIN_TOLERANCE, ZERO_BELOW) == (1 / 32, 2.0**-20)
    steps = torch.arange(16) / 16 + 1
    for power in (-20, -3, 0, 9):
        first = (power + 20) * 16 + 1
        assert bin_numbers(steps * 2.0**power).tolist() == list(range(first, first + 16))
    below = torch.tensor([ZERO_BELOW]).nextafter(torch.tensor([0.0]))
    assert bin_numbers(below).tolist() == bin_numbers(-below).tolist() == [0]
    assert bin_numbers(torch.tensor([ZERO_BELOW, -ZERO_BELOW])).tolist() == [1, -1]
    middles = [1 + 0.5 / 16, 1 + 15.5 / 16, 2 + 1 / 16]
    found = bin_centers(torch.tensor([1, 16, 17])) / ZERO_BELOW
    assert found.tolist() == middles


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_number_lies_in_the_same_bin_in_any_precision(dtype) -> None:
    random = torch.Generator().manual_seed(0)
    powers = torch.randint(-149, 127, (5000,), generator=random)
    values = torch.ldexp(torch.randn(5000, generator=random), powers).to(dtype)
    values = values[values.isfinite()]
    assert torch.equal(bin_numbers(values), bin_numbers(values.double()))


# All channels together.


def test_all_channels_together_are_the_statistics_of_all_values() -> None:
    one, summary = known().combined, known().summary()
    flat = X.double().reshape(-1).numpy()
    sound = flat[np.isfinite(flat)]
    np.testing.assert_allclose(one.mean, [sound.mean()], rtol=1e-12)
    np.testing.assert_allclose(one.std, [sound.std()], rtol=1e-12)
    assert (one.min.item(), one.max.item()) == (sound.min(), sound.max())
    assert (one.nan.item(), one.inf.item()) == (1, 2)
    assert (one.zeros.item(), one.positive.item()) == ((sound == 0).sum(), (sound > 0).sum())
    assert one.count.item() == one.bins.sum().item() == len(sound)
    peaks = np.where(np.isfinite(X.numpy()), X.numpy(), -np.inf).max(2).ravel()
    assert one.top_values[0].tolist() == np.sort(peaks)[::-1][:TOP_INPUTS].tolist()
    # The summary has the same in plain numbers.
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["channels"], summary["values"], summary["dead"]) == (4, len(sound), 0)
    assert (summary["nan"], summary["inf"]) == (1, 2)
    expected = (sound.mean(), sound.std(), sound.min(), sound.max())
    assert [summary[name] for name in ("mean", "std", "min", "max")] == pytest.approx(expected)
    true = np.quantile(sound, 0.5, method="inverted_cdf")
    assert abs(summary["median"] - true) <= max(abs(true) * BIN_TOLERANCE, ZERO_BELOW)


def test_a_summary_of_no_finite_value_tells_none_and_has_the_dtypes_of_others() -> None:
    summary = known(torch.full((2, 3, 1), math.nan)).summary()
    assert [summary[name] for name in ("mean", "std", "min", "median", "max")] == [None] * 5
    assert (summary["channels"], summary["values"], summary["dead"], summary["nan"]) == (3, 0, 0, 6)
    for values in (X, torch.full((2, 3, 1), math.nan)):
        each = known(values)
        for field in fields(each):
            for other in (each.combined, each.merge(each)):
                assert getattr(other, field.name).dtype is getattr(each, field.name).dtype
    assert each.combined.std.isnan().all() and each.combined.mean.item() == 0
    one = known(torch.tensor([[[3.0]]])).combined
    assert (one.count.item(), one.mean.item(), one.std.item()) == (1, 3, 0)


def test_an_update_of_no_values_changes_nothing_and_anothers_keys_are_taken_over() -> None:
    one, other = DatasetStatistics(2), DatasetStatistics(2)
    one.update("a", torch.zeros(0, 3, 2), [])
    one.update("a", torch.zeros(2, 3, 0), [0, 1])
    assert one.channels == {}
    one.update("a", torch.ones(1, 1, 1), [0])
    other.update("a", torch.full((1, 1, 1), 3.0), [1])
    other.update("b", torch.ones(1, 2, 1), [1])
    one.merge(other)
    assert list(one.channels) == ["a", "b"]
    assert one.channels["a"].mean.tolist() == [2.0]
    assert one.channels["a"].top_rows.tolist() == [[1, 0]]


def test_what_goes_to_tensors_is_found_among_others() -> None:
    statistics = DatasetStatistics(2)
    statistics.update("a.b/output", X, range(11))
    tensors = statistics.to_tensors()
    assert all(name.startswith("a.b/output.") and t.is_contiguous() for name, t in tensors.items())
    back = DatasetStatistics.from_tensors({**tensors, "other/output.std": torch.ones(1)}, 2)
    assert list(back.channels) == ["a.b/output"] and back.top == 2
    for name, tensor in back.to_tensors().items():
        assert torch.equal(tensor, tensors[name])


# Runs.

SHARD = "statistics.safetensors"
NET = nn.Sequential(nn.ReLU(), nn.Linear(5, 2)).requires_grad_(False)
ROWS = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))


def test_a_run_that_keeps_statistics_alone_tells_of_which_values_they_are(tmp_path) -> None:
    options = {"layers": ["0", "."], "input": TensorDataset(ROWS), "stats_only": True}
    out = tmp_path / "out"
    [shard] = extract_six_rows(out, NET, **options).manifest["shards"]
    assert (shard["file"], shard["rows"]) == (SHARD, 11)
    found, shot = load_file(out / SHARD), hookscope.load(out / SHARD)
    assert shot.metadata["command"] == "statistics" and shot.metadata["rows"] == 11
    assert shot.metadata["quantiles"] == list(QUANTILES)
    expected = ChannelStatistics.of(ROWS.relu()[:, :, None], range(11), TOP_INPUTS)
    for name in ("count", "min", "max", "zeros", "positive", "bins", "top_rows", "top_values"):
        assert torch.equal(found[f"0/output.{name}"], getattr(expected, name)), name
    first, last = shot.metadata["statistics"]
    assert (first["key"], first["module"], first["what"]) == ("0/output", "0", "output")
    assert (first["kind"], first["call"], first["type"]) == ("output", 1, "ReLU")
    assert (first["values"], first["channels"]) == (55, 5)
    assert (last["key"], last["module"]) == ("./output", ".")
    record = next(r for r in shot.records if r.key == "0/output.mean")
    assert (record.module, record.call, record.kind) == ("0", 1, "statistics")


class Ending(TensorDataset):
    """A dataset whose last rows cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index >= 8:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def test_statistics_of_a_finished_run_are_kept_and_those_of_parts_are_no_captures(tmp_path) -> None:
    options = {"model": NET, "batch": 4, "stats_only": True}
    out = tmp_path / "out"
    with pytest.raises(hookscope.HookscopeError):
        extract_six_rows(out, input=Ending(ROWS), **options)
    with pytest.raises(hookscope.HookscopeError, match="features folder"):
        hookscope.load(out / "rows-00000000.safetensors")
    options["input"] = TensorDataset(ROWS)
    done = extract_six_rows(out, force=True, **options)
    [key] = done.manifest["keys"]
    assert (key["key"], key["reduce"], key["dtype"]) == ("0/output", "statistics", "float32")
    assert index_of(out)["weight_map"] == dict.fromkeys(load_file(out / SHARD), SHARD)
    before = contents(out)
    assert extract_six_rows(out, resume=True, **options).resumed == 11
    assert contents(out) == before
