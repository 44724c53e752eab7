"""Statistics of each channel over a whole dataset: one pass, in parts that can be merged.

Counts, extremes, bins and the top inputs are the same however the data is split into parts. Mean
and standard deviation are the same up to rounding in float64.

There are two kinds of bins, both with fixed edges, so that counts of several parts can be added.
``histogram`` has a few bins, the same for every layer. Quantiles use fine bins, computed from a
float's exponent and the first bits of its fraction: 16 to each doubling, so that the centre of a
bin is within 1/32 of every value in it. Magnitudes under 2**-20 count as zero. The fine bins cover
all of float64, and a number has the same bin as float32 and as float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hookscope.extraction.axes import accumulation_dtype
from hookscope.results.metadata import ChannelSummary
from hookscope.tensors.tensor_stats import euclidean_norm, scale_by_power_of_two

# Exact in binary: 2**-14, 1.5 * 2**-14, ... 1.5 * 2**9, 2**10, and the same below zero.
_POSITIVE_EDGES = [half * 2.0**power for power in range(-14, 10) for half in (1.0, 1.5)] + [1024.0]
HISTOGRAM_EDGES = tuple([-edge for edge in reversed(_POSITIVE_EDGES)] + _POSITIVE_EDGES)

_FRACTION_BITS = 4
_BINS_PER_DOUBLING = 1 << _FRACTION_BITS
_ZERO_EXPONENT = -20  # magnitudes under this power of two count as zero
ZERO_BELOW, BIN_TOLERANCE = 2.0**_ZERO_EXPONENT, 1 / (2 * _BINS_PER_DOUBLING)

TOP_INPUTS = 10  # inputs stored for each channel
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_COUNTS = ("zeros", "positive", "nan", "inf")
_BLOCK = 1 << 21  # values processed at a time, in float64 and with their bins: about 250 MB


def histogram(parts: Tensor) -> Tensor:
    """Count the values of the last dimension of ``parts`` in the bins of ``HISTOGRAM_EDGES``.

    A value on an edge is counted in the bin above it. NaN is not counted.
    """
    count = len(HISTOGRAM_EDGES) + 1
    edges = torch.tensor(HISTOGRAM_EDGES, device=parts.device, dtype=parts.dtype)
    bins = torch.bucketize(parts, edges, right=True)
    bins = torch.where(parts.isnan(), count, bins)  # an extra bin, removed below
    counts = count_bins(bins.flatten(0, 1), count + 1)[:, :count]
    return counts.reshape(*parts.shape[:2], count).int()


def count_bins(bins: Tensor, width: int) -> Tensor:
    """Count how often each of 0 to ``width - 1`` is in each row of ``bins``, (rows, width)."""
    rows = len(bins)
    flat = bins + width * torch.arange(rows, device=bins.device).unsqueeze(1)
    return torch.bincount(flat.flatten(), minlength=rows * width).reshape(rows, width)


def bin_numbers(values: Tensor) -> Tensor:
    """The number of the fine bin of each finite value: 0 around zero, negative below."""
    if values.dtype == torch.float64:
        integer, fraction, bias = torch.int64, 52, 1023
    else:
        values, integer, fraction, bias = values.float(), torch.int32, 23, 127
    base = (bias + _ZERO_EXPONENT) << _FRACTION_BITS
    bits = values.abs().view(integer) >> (fraction - _FRACTION_BITS)
    return torch.where(bits < base, 0, bits - base + 1).long() * values.sign().long()


def bin_centers(numbers: Tensor) -> Tensor:
    """The centre of each fine bin, float64."""
    steps = numbers.abs() - 1
    power = torch.div(steps, _BINS_PER_DOUBLING, rounding_mode="floor") + _ZERO_EXPONENT
    fraction = 1 + (steps % _BINS_PER_DOUBLING + 0.5) / _BINS_PER_DOUBLING
    size = torch.ldexp(fraction.double(), power)
    return torch.where(numbers == 0, 0.0, size * numbers.sign())


@dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of each of C channels. NaN and infinite values are counted, and else ignored."""

    count: Tensor
    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor
    zeros: Tensor
    positive: Tensor
    nan: Tensor
    inf: Tensor
    bins: Tensor
    first_bin: Tensor
    top_values: Tensor
    top_rows: Tensor

    @classmethod
    def of(cls, values: Tensor, rows: Sequence[int], top: int = TOP_INPUTS) -> ChannelStatistics:
        """Return the statistics of ``values`` (rows, channels, positions) of inputs ``rows``."""
        if values.is_complex():
            real = accumulation_dtype(values)
            values = values.to(torch.complex64 if real is torch.float32 else torch.complex128).abs()
        wide = values.to(accumulation_dtype(values))
        finite = wide.isfinite()
        count = finite.sum((0, 2))
        kept = torch.where(finite, wide, 0)
        low = torch.where(finite, wide, float("inf")).amin((0, 2))
        peaks = torch.where(finite, wide, float("-inf")).amax(2)  # (rows, channels)
        mean, std = _mean_and_std(kept, finite, count, low, peaks.amax(0))
        bins, first = _binned(kept, finite)
        on_device = cls(
            count,
            mean.double(),
            std.double(),
            low.double(),
            peaks.amax(0).double(),
            (finite & (wide == 0)).sum((0, 2)),
            (finite & (wide > 0)).sum((0, 2)),
            wide.isnan().sum((0, 2)),
            wide.isinf().sum((0, 2)),
            bins,
            torch.tensor(first),
            *_top(
                peaks.T.double(),
                torch.tensor(rows, device=wide.device).expand(peaks.shape[1], -1),
                top,
            ),
        )
        return cls(*(getattr(on_device, f.name).cpu() for f in fields(cls)))

    def merge(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics of both parts together.

        Mean and standard deviation follow Chan, Golub and LeVeque, "Updating formulae and a
        pairwise algorithm for computing sample variances" (1979).
        """
        total = self.count + other.count
        mean, std = _merge_mean_and_std(self, other, total)
        first = min(int(self.first_bin), int(other.first_bin))
        last = max(int(part.first_bin) + part.bins.shape[1] for part in (self, other))
        bins = torch.zeros(len(total), last - first, dtype=torch.int64)
        for part in (self, other):
            start = int(part.first_bin) - first
            bins[:, start : start + part.bins.shape[1]] += part.bins
        top_values, top_rows = _top(
            torch.cat([self.top_values, other.top_values], 1),
            torch.cat([self.top_rows, other.top_rows], 1),
            self.top_rows.shape[1],
        )
        return ChannelStatistics(
            count=total,
            mean=mean,
            std=std,
            min=torch.minimum(self.min, other.min),
            max=torch.maximum(self.max, other.max),
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            bins=bins,
            first_bin=torch.tensor(first),
            top_values=top_values,
            top_rows=top_rows,
        )

    @property
    def dead(self) -> Tensor:
        """Whether all values of a channel were zero, bool."""
        return (self.count > 0) & (self.zeros == self.count) & (self.nan + self.inf == 0)

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> Tensor:
        """Return the smallest value that ``share`` of the values do not exceed, (C, len(shares)).

        The error is at most 1/32 of the exact quantile or 2**-20, whichever is larger. NaN for a
        channel without finite values.
        """
        cumulative = self.bins.cumsum(1)
        ranks = (torch.tensor(shares, dtype=torch.float64) * self.count[:, None]).ceil().long()
        bins = torch.searchsorted(cumulative, ranks.clamp(min=1)).clamp(max=self.bins.shape[1] - 1)
        values = bin_centers(bins + self.first_bin).clamp(self.min[:, None], self.max[:, None])
        return torch.where(self.count[:, None] > 0, values, float("nan"))

    def summary(self) -> ChannelSummary:
        """The statistics of all channels as one, as plain values; None without a finite value."""
        values, all_channels = int(self.count.sum()), self.combined
        return {
            "channels": len(self.count),
            "values": values,
            "mean": all_channels.mean.item() if values else None,
            "std": all_channels.std.item() if values else None,
            "min": all_channels.min.item() if values else None,
            "median": all_channels.quantiles((0.5,)).item() if values else None,
            "max": all_channels.max.item() if values else None,
            "dead": int(self.dead.sum()),
            "nan": int(self.nan.sum()),
            "inf": int(self.inf.sum()),
        }

    @property
    def combined(self) -> ChannelStatistics:
        """The statistics of all channels taken as one channel."""
        count = self.count.sum()
        shares = self.count.double() / count.clamp(min=1)
        mean = _bounded((self.mean * shares).sum())
        # Halved, because two means may be farther apart than the largest float.
        parts = torch.cat([torch.where(self.count > 0, self.std, 0) / 2, self.mean / 2 - mean / 2])
        std = _bounded(euclidean_norm(parts * shares.sqrt().repeat(2)) * 2)
        sums = {name: getattr(self, name).sum()[None] for name in (*_COUNTS, "count")}
        values, rows = self.top_values.reshape(1, -1), self.top_rows.reshape(1, -1)
        values, rows = _top(values, rows, self.top_rows.shape[1])
        return ChannelStatistics(
            **sums,
            mean=mean[None],
            std=std[None] if count else torch.full((1,), float("nan"), dtype=torch.float64),
            min=self.min.amin()[None],
            max=self.max.amax()[None],
            bins=self.bins.sum(0, keepdim=True),
            first_bin=self.first_bin,
            top_values=values,
            top_rows=rows,
        )


class DatasetStatistics:
    """Statistics of several layers' channels, by key."""

    def __init__(self, top: int = TOP_INPUTS) -> None:
        self.top = top
        self.channels: dict[str, ChannelStatistics] = {}

    def update(self, key: str, values: Tensor, rows: Sequence[int]) -> None:
        """Add ``values`` (rows, channels, positions), on any device, of the inputs ``rows``."""
        if not values.numel():
            return
        step = max(_BLOCK // values[0].numel(), 1)
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            self._add(key, ChannelStatistics.of(values[part], rows[part], self.top))

    def merge(self, other: DatasetStatistics) -> None:
        """Add the statistics of another part of the dataset."""
        for key, channels in other.channels.items():
            self._add(key, channels)

    def _add(self, key: str, channels: ChannelStatistics) -> None:
        before = self.channels.get(key)
        self.channels[key] = before.merge(channels) if before else channels

    def to_tensors(self) -> dict[str, Tensor]:
        """Return all statistics as ``<key>.<field>``."""
        return {
            f"{key}.{f.name}": getattr(channels, f.name).contiguous()
            for key, channels in self.channels.items()
            for f in fields(channels)
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], top: int = TOP_INPUTS
    ) -> DatasetStatistics:
        """Return the statistics that ``to_tensors`` described; other tensors are ignored."""
        statistics = cls(top)
        names = [f.name for f in fields(ChannelStatistics)]
        for name in tensors:
            key, _, field = name.rpartition(".")
            if field == names[0]:
                values = {name: tensors[f"{key}.{name}"] for name in names}
                statistics.channels[key] = ChannelStatistics(**values)
        return statistics


def _mean_and_std(
    kept: Tensor, finite: Tensor, count: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, (C,); its finite values are from ``low`` to ``high``."""
    largest = torch.where(count > 0, low.abs().maximum(high.abs()), 0)
    info = torch.finfo(kept.dtype)
    least, most = (info.tiny / info.eps**2) ** 0.5, info.max**0.5 * info.eps
    extreme = (largest > most) | ((largest < least) & (largest > 0))
    exponent = torch.zeros_like(count)
    if bool(extreme.any()):  # their squares may be infinite or 0: divide by a power of two first
        exponent = torch.where(extreme, torch.frexp(largest).exponent, 0)
        kept = scale_by_power_of_two(kept, -exponent[:, None])
    mean = kept.sum((0, 2)) / count.clamp(min=1)
    m2 = torch.where(finite, kept - mean[:, None], 0).square().sum((0, 2))
    std = scale_by_power_of_two((m2 / count).sqrt(), exponent)
    return _bounded(scale_by_power_of_two(mean, exponent)), _bounded(std)


def _merge_mean_and_std(
    a: ChannelStatistics, b: ChannelStatistics, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of both parts; ``hypot``, because squares of large floats overflow."""
    # Not counts divided by counts: the quotient of integers would be float32.
    share_a, share_b = (part.count.double() / total.clamp(min=1) for part in (a, b))
    delta = b.mean - a.mean
    far = delta.isinf()  # two means may be farther apart than the largest float
    mean = torch.where(far, a.mean * share_a + b.mean * share_b, a.mean + delta * share_b)
    factor = (share_b * share_a).sqrt()
    between = torch.where(far, (b.mean / 2 - a.mean / 2) * (2 * factor), delta * factor)
    within = torch.hypot(
        torch.where(a.count > 0, a.std, 0) * share_a.sqrt(),
        torch.where(b.count > 0, b.std, 0) * share_b.sqrt(),
    )
    std = torch.where(total > 0, torch.hypot(within, between), float("nan"))
    return _bounded(mean), _bounded(std)


def _bounded(values: Tensor) -> Tensor:
    """Means or deviations, with infinities replaced by the largest float; NaN stays."""
    return values.nan_to_num(float("nan"))


def _binned(kept: Tensor, finite: Tensor) -> tuple[Tensor, int]:
    """Counts of the fine bins of each channel, (C, W), and the number of the first bin."""
    numbers = bin_numbers(kept)
    first, last = (int(edge) for edge in numbers.aminmax())
    width = last - first + 1
    bins = torch.where(finite, numbers - first, width)  # an extra bin, removed below
    return count_bins(bins.transpose(0, 1).flatten(1), width + 1)[:, :width], first


def _top(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest ``count`` of each channel, (C, n), and their rows; lower rows win ties."""
    missing = count - values.shape[1]
    if missing > 0:
        values = torch.nn.functional.pad(values, (0, missing), value=float("-inf"))
        rows = torch.nn.functional.pad(rows, (0, missing), value=-1)
    rows, order = rows.sort(dim=1, stable=True)
    values = values.gather(1, order)
    values, order = values.sort(dim=1, descending=True, stable=True)
    rows = torch.where(values.isinf(), -1, rows.gather(1, order))  # an input without a finite value
    return values[:, :count], rows[:, :count]
