"""Statistics of a dataset: the summary of all channels, and the numbers of bins."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
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

X = torch.randn(11, 4, 6, generator=torch.Generator().manual_seed(0))
X[0, 0, 0], X[1, 1, 1], X[2, 2, 2] = float("nan"), float("inf"), float("-inf")
X[:, 3] = X[:, 3].abs().neg()
X[5, 0, :] = 0


def test_edges_are_symmetric_and_double_every_second_step() -> None:
    assert len(HISTOGRAM_EDGES) == 98 and list(HISTOGRAM_EDGES) == sorted(HISTOGRAM_EDGES)
    assert all(
        low == -high for low, high in zip(HISTOGRAM_EDGES, reversed(HISTOGRAM_EDGES), strict=True)
    )
    above = HISTOGRAM_EDGES[49:]
    assert (above[0], above[1], above[-1]) == (2.0**-14, 1.5 * 2.0**-14, 1024.0)
    assert all(above[i + 2] == 2 * above[i] for i in range(len(above) - 2))


def test_a_histogram_counts_each_channel_of_each_row_apart() -> None:
    found = histogram(X)
    assert found.shape == (11, 4, 99) and found.dtype is torch.int32
    for row in range(11):
        for channel in range(4):
            values = X[row, channel].numpy()
            places = np.searchsorted(
                np.array(HISTOGRAM_EDGES, dtype=np.float32), values, side="right"
            )
            expected = np.bincount(places[~np.isnan(values)], minlength=99)
            assert found[row, channel].tolist() == expected.tolist()


def test_a_value_on_an_edge_counts_above_it() -> None:
    found = histogram(torch.tensor(HISTOGRAM_EDGES, dtype=torch.float64).reshape(1, 1, -1))
    assert found[0, 0].tolist() == [0] + [1] * 98


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
    assert bin_centers(torch.tensor([1, 16, 17])).tolist() == [
        ZERO_BELOW * (1 + 0.5 / 16),
        ZERO_BELOW * (1 + 15.5 / 16),
        2 * ZERO_BELOW * (1 + 0.5 / 16),
    ]


def known(values: torch.Tensor = X, top: int = TOP_INPUTS) -> ChannelStatistics:
    return ChannelStatistics.of(values, range(len(values)), top)


def test_all_channels_together_are_the_statistics_of_all_values() -> None:
    one = known().combined
    flat = X.double().reshape(1, -1).numpy()
    sound = flat[np.isfinite(flat)]
    assert one.count.tolist() == [len(sound)]
    np.testing.assert_allclose(one.mean, [sound.mean()], rtol=1e-12)
    np.testing.assert_allclose(one.std, [sound.std()], rtol=1e-12)
    assert (one.min.item(), one.max.item()) == (sound.min(), sound.max())
    assert (one.nan.item(), one.inf.item()) == (1, 2)
    assert one.zeros.item() == (sound == 0).sum()
    assert one.positive.item() == (sound > 0).sum()
    assert one.bins.sum().item() == len(sound)
    peaks = np.where(np.isfinite(X.numpy()), X.numpy(), -np.inf).max(2).ravel()
    assert one.top_values[0].tolist() == np.sort(peaks)[::-1][:TOP_INPUTS].tolist()


def test_a_summary_is_told_in_plain_numbers() -> None:
    summary = known().summary()
    flat = X.double().numpy().ravel()
    sound = flat[np.isfinite(flat)]
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["channels"], summary["values"], summary["dead"]) == (4, len(sound), 0)
    assert (summary["nan"], summary["inf"]) == (1, 2)
    assert summary["mean"] == pytest.approx(sound.mean(), rel=1e-12)
    assert summary["std"] == pytest.approx(sound.std(), rel=1e-12)
    assert (summary["min"], summary["max"]) == (sound.min(), sound.max())
    true = np.quantile(sound, 0.5, method="inverted_cdf")
    assert abs(summary["median"] - true) <= max(abs(true) * BIN_TOLERANCE, ZERO_BELOW)


def test_a_summary_of_no_finite_value_tells_none() -> None:
    summary = known(torch.full((2, 3, 1), math.nan)).summary()
    assert [summary[name] for name in ("mean", "std", "min", "median", "max")] == [None] * 5
    assert (summary["channels"], summary["values"], summary["dead"], summary["nan"]) == (3, 0, 0, 6)


def test_all_channels_together_have_the_dtypes_of_each_also_without_a_value() -> None:
    for values in (X, torch.full((2, 3, 1), math.nan)):
        each = known(values)
        for field in fields(each):
            for other in (each.combined, each.merge(each)):
                assert getattr(other, field.name).dtype is getattr(each, field.name).dtype
    assert each.combined.std.isnan().all() and each.combined.mean.item() == 0


def test_a_single_value_is_its_own_mean() -> None:
    one = known(torch.tensor([[[3.0]]])).combined
    assert (one.count.item(), one.mean.item(), one.std.item()) == (1, 3, 0)


def test_complex_values_are_described_by_their_size() -> None:
    found = known(torch.tensor([[[3 + 4j]], [[0j]]]))
    assert (found.max.item(), found.zeros.item(), found.mean.item()) == (5, 1, 2.5)
    wide = known(torch.tensor([[[3e200 + 4e200j]]], dtype=torch.complex128))
    assert wide.max.item() == pytest.approx(5e200) and wide.inf.item() == 0


def test_as_many_inputs_are_told_as_asked_for_and_the_best_of_them() -> None:
    values = torch.tensor([5.0, 7.0, 7.0, math.nan, 1.0]).reshape(5, 1, 1)
    found = ChannelStatistics.of(values, [10, 30, 20, 40, 50], 3)
    assert found.top_rows.tolist() == [[20, 30, 10]]
    assert found.top_values.tolist() == [[7, 7, 5]]
    found = ChannelStatistics.of(values, [10, 30, 20, 40, 50], 6)
    assert found.top_rows.tolist() == [[20, 30, 10, 50, -1, -1]]
    assert found.top_values[0, :4].tolist() == [7, 7, 5, 1]
    assert bool(found.top_values[0, 4:].isneginf().all())


def test_quantiles_of_few_values_are_values_that_are_there() -> None:
    found = known(torch.tensor([1.0, 2.0, 4.0, 8.0]).reshape(4, 1, 1)).quantiles(
        (0.0, 0.25, 0.26, 1)
    )
    np.testing.assert_allclose(found[0], [1, 1, 2, 8], rtol=BIN_TOLERANCE)


def test_an_update_of_no_values_changes_nothing() -> None:
    statistics = DatasetStatistics(2)
    statistics.update("a", torch.zeros(0, 3, 2), [])
    statistics.update("a", torch.zeros(2, 3, 0), [0, 1])
    assert statistics.channels == {}


def test_another_ones_keys_are_taken_over() -> None:
    one, other = DatasetStatistics(2), DatasetStatistics(2)
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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.never = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) - 1


@pytest.mark.parametrize("batch", [4, 11])
@pytest.mark.parametrize("shard_size", [1, 10**6])
def test_a_run_that_keeps_statistics_alone_tells_those_of_every_row(
    tmp_path, batch: int, shard_size: int
) -> None:
    x = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
    options = {"layers": ["act", "."], "batch": batch, "shard_size": shard_size, "workers": 0}
    done = hookscope.extract(
        Net(), tmp_path / "out", input=TensorDataset(x), stats_only=True, **options
    )
    file = tmp_path / "out" / "statistics.safetensors"
    found = load_file(file)
    shot = hookscope.load(file)
    assert shot.metadata["command"] == "statistics" and shot.metadata["rows"] == 11
    assert shot.metadata["quantiles"] == list(QUANTILES)
    for key, rows in {"act/output": x.relu(), "./output": x.relu() - 1}.items():
        expected = ChannelStatistics.of(rows[:, :, None], range(11), TOP_INPUTS)
        for name in ("count", "min", "max", "zeros", "positive", "bins", "top_rows", "top_values"):
            assert torch.equal(found[f"{key}.{name}"], getattr(expected, name)), name
        torch.testing.assert_close(found[f"{key}.mean"], rows.double().mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(
            found[f"{key}.std"], rows.double().std(0, correction=0), rtol=1e-9, atol=0
        )
        assert torch.equal(found[f"{key}.quantiles"], expected.quantiles())
        assert torch.equal(found[f"{key}.dead"], expected.dead)
    first, last = shot.metadata["statistics"]
    assert (first["module"], last["module"]) == ("act", ".")
    assert (first["values"], first["channels"], first["type"]) == (55, 5, "ReLU")
    assert (first["key"], first["what"], first["kind"]) == ("act/output", "output", "output")
    assert (first["call"], last["key"]) == (1, "./output")
    record = next(r for r in shot.records if r.key == "act/output.mean")
    assert (record.module, record.call, record.kind) == ("act", 1, "statistics")
    [shard] = done.manifest["shards"]
    assert (shard["file"], shard["rows"]) == ("statistics.safetensors", 11)
    assert {path.name for path in (tmp_path / "out").iterdir() if "part" in path.name} == set()


@pytest.mark.parametrize("value", [0.7, -3.3, 1e-30, 5e20])
def test_quantiles_lie_between_the_smallest_and_the_largest_value(value: float) -> None:
    found = known(torch.full((4, 1, 2), value, dtype=torch.float64)).quantiles()
    assert found[0].tolist() == [value] * len(QUANTILES)


class Ending(TensorDataset):
    """A dataset whose last rows cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index >= 8:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def test_statistics_of_a_finished_run_are_kept_and_those_of_parts_are_no_captures(tmp_path) -> None:
    x = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
    options = {"layers": "act", "batch": 4, "shard_size": 1, "workers": 0, "stats_only": True}
    out = tmp_path / "out"
    with pytest.raises(hookscope.HookscopeError):
        hookscope.extract(Net(), out, input=Ending(x), **options)
    with pytest.raises(hookscope.HookscopeError, match="part of a features folder"):
        hookscope.load(out / "rows-00000000.safetensors")
    done = hookscope.extract(Net(), out, input=TensorDataset(x), force=True, **options)
    [key] = done.manifest["keys"]
    assert (key["key"], key["reduce"], key["dtype"]) == ("act/output", "statistics", "float32")
    tensors = load_file(out / "statistics.safetensors")
    index = json.loads((out / "features.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert index["weight_map"] == dict.fromkeys(tensors, "statistics.safetensors")
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = hookscope.extract(Net(), out, input=TensorDataset(x), resume=True, **options)
    assert again.resumed == 11
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
