"""Bins with fixed edges that cover all magnitudes: counts in them add up whoever counted.

Two kinds. Of ``histogram``: a few, the same for every layer. For quantiles: fine ones, read off a
float's exponent and the first bits of its fraction, 16 to each doubling, so that the middle of a
bin is within 1/32 of every value in it; magnitudes under 2**-20 count as zero. All of float64 has
its bins, and a number lies in the same one as float32 and as float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from hookscope.extraction.axes import accumulation_dtype
from hookscope.tensors.tensor_stats import euclidean_norm, scale_by_power_of_two

# Exact in binary: 2**-14, 1.5 * 2**-14, ... 1.5 * 2**9, 2**10, and the same below zero.
_UP = [half * 2.0**power for power in range(-14, 10) for half in (1.0, 1.5)] + [1024.0]

HISTOGRAM_EDGES = tuple([-edge for edge in reversed(_UP)] + _UP)

_BITS = 4  # of the fraction

_SUB = 1 << _BITS

_TINY = -20  # the power of two under which a magnitude counts as zero

ZERO_BELOW, BIN_TOLERANCE = 2.0**_TINY, 1 / (2 * _SUB)


def histogram(parts: Tensor) -> Tensor:
    """Count, for each last dimension of ``parts``, the values in each of the bins of ``EDGES``.

    A value on an edge counts above it; NaN counts nowhere.

    Args:
        parts: (N, C, P).

    Returns:
        int32, (N, C, 99).
    """
    count = len(HISTOGRAM_EDGES) + 1
    edges = torch.tensor(HISTOGRAM_EDGES, device=parts.device, dtype=parts.dtype)
    places = torch.bucketize(parts, edges, right=True)
    places = torch.where(parts.isnan(), count, places)  # one bin more, cut off again
    found = count_bins(places.flatten(0, 1), count + 1)[:, :count]
    return found.reshape(*parts.shape[:2], count).int()


def count_bins(places: Tensor, width: int) -> Tensor:
    """Count how often each of 0 to ``width - 1`` is in each line of ``places``, (lines, width)."""
    lines = len(places)
    flat = places + width * torch.arange(lines, device=places.device).unsqueeze(1)
    return torch.bincount(flat.flatten(), minlength=lines * width).reshape(lines, width)


def bin_numbers(values: Tensor) -> Tensor:
    """The number of the fine bin of each finite value: 0 around zero, negative below.

    >>> fine(torch.tensor([0.0, 1.0, 1.06, 1.07, -1.0]))
    tensor([   0,  321,  321,  322, -321])
    """
    if values.dtype == torch.float64:
        whole, fraction, bias = torch.int64, 52, 1023
    else:
        values, whole, fraction, bias = values.float(), torch.int32, 23, 127
    base = (bias + _TINY) << _BITS
    bits = values.abs().view(whole) >> (fraction - _BITS)
    return torch.where(bits < base, 0, bits - base + 1).long() * values.sign().long()


def bin_centers(numbers: Tensor) -> Tensor:
    """The middle of each fine bin, float64.

    >>> middles(torch.tensor([0, 321, -321]))
    tensor([ 0.0000,  1.0312, -1.0312], dtype=torch.float64)
    """
    steps = numbers.abs() - 1
    power = torch.div(steps, _SUB, rounding_mode="floor") + _TINY
    part = 1 + (steps % _SUB + 0.5) / _SUB
    size = torch.ldexp(part.double(), power)
    return torch.where(numbers == 0, 0.0, size * numbers.sign())


TOP_INPUTS = 10  # inputs told for each channel

_COUNTS = ("zeros", "positive", "nan", "inf")

_BLOCK = 1 << 21  # values looked at together, in float64 and with their bins: about 250 MB

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class ChannelStatistics:
    """What is known of each of C channels. NaN and infinite values are counted and left out.

    Attributes:
        count: finite values, int64.
        mean: of them, float64; 0 where there is none.
        std: their population standard deviation, float64; NaN where there is none.
        min, max: float64; inf and -inf where there is none.
        zeros, positive, nan, inf: how many, int64.
        bins: how many values are in each fine bin, int64, (C, W); see ``bins.py``.
        first_bin: number of the first of those bins, int64, ().
        top_values: the largest values, each of another input, float64, (C, K).
        top_rows: whose they are, int64, (C, K); -1 where there are fewer inputs.
    """

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
        """Describe ``values`` (rows, channels, positions), those of the inputs ``rows``."""
        if values.is_complex():
            real = accumulation_dtype(values)
            values = values.to(torch.complex64 if real is torch.float32 else torch.complex128).abs()
        wide = values.to(accumulation_dtype(values))
        sound = wide.isfinite()
        count = sound.sum((0, 2))
        kept = torch.where(sound, wide, 0)
        low = torch.where(sound, wide, float("inf")).amin((0, 2))
        peaks = torch.where(sound, wide, float("-inf")).amax(2)  # (rows, channels)
        mean, std = _mean_and_std(kept, sound, count, low, peaks.amax(0))
        bins, first = _binned(kept, sound)
        made = cls(
            count,
            mean.double(),
            std.double(),
            low.double(),
            peaks.amax(0).double(),
            (sound & (wide == 0)).sum((0, 2)),
            (sound & (wide > 0)).sum((0, 2)),
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
        return cls(*(getattr(made, f.name).cpu() for f in fields(cls)))

    def merge(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics of both together.

        Mean and spread by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
        computing sample variances" (1979).
        """
        total = self.count + other.count
        mean, std = _merged(self, other, total)
        first = min(int(self.first_bin), int(other.first_bin))
        last = max(int(one.first_bin) + one.bins.shape[1] for one in (self, other))
        bins = torch.zeros(len(total), last - first, dtype=torch.int64)
        for one in (self, other):
            start = int(one.first_bin) - first
            bins[:, start : start + one.bins.shape[1]] += one.bins
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
        """Whether a channel was never above zero, bool."""
        return self.positive == 0

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> Tensor:
        """Return the smallest value that ``share`` of the values do not exceed, (C, len(shares)).

        It is off by at most 1/32 of the true one or by 2**-20, whichever is more; NaN for none.
        """
        heaps = self.bins.cumsum(1)
        ranks = (torch.tensor(shares, dtype=torch.float64) * self.count[:, None]).ceil().long()
        places = torch.searchsorted(heaps, ranks.clamp(min=1)).clamp(max=self.bins.shape[1] - 1)
        found = bin_centers(places + self.first_bin).clamp(self.min[:, None], self.max[:, None])
        return torch.where(self.count[:, None] > 0, found, float("nan"))

    def summary(self) -> dict[str, Any]:
        """All channels together, as plain values; None where there is no finite value."""
        values, one = int(self.count.sum()), self.together
        sound = values > 0
        return {
            "channels": len(self.count),
            "values": values,
            "mean": one.mean.item() if sound else None,
            "std": one.std.item() if sound else None,
            "min": one.min.item() if sound else None,
            "median": one.quantiles((0.5,)).item() if sound else None,
            "max": one.max.item() if sound else None,
            "dead": int(self.dead.sum()),
            "nan": int(self.nan.sum()),
            "inf": int(self.inf.sum()),
        }

    @property
    def together(self) -> ChannelStatistics:
        """Those of all channels taken as one."""
        count = self.count.sum()
        shares = self.count.double() / count.clamp(min=1)
        mean = _bounded((self.mean * shares).sum())
        # Halved, as two means may be farther apart than the largest float.
        parts = torch.cat([torch.where(self.count > 0, self.std, 0) / 2, self.mean / 2 - mean / 2])
        std = _bounded(euclidean_norm(parts * shares.sqrt().repeat(2)) * 2)
        added = {name: getattr(self, name).sum()[None] for name in (*_COUNTS, "count")}
        values, rows = self.top_values.reshape(1, -1), self.top_rows.reshape(1, -1)
        values, rows = _top(values, rows, self.top_rows.shape[1])
        return ChannelStatistics(
            **added,
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
    """Statistics of several layers' channels, by key.

    Args:
        top: how many inputs are told for each channel.

    Example:
        >>> known = Statistics()
        >>> known.update("relu/output", torch.tensor([[[0.0, 3.0]], [[1.0, 2.0]]]), [0, 1])
        >>> known.channels["relu/output"].mean, known.channels["relu/output"].top_rows[0, :2]
        (tensor([1.5000], dtype=torch.float64), tensor([0, 1]))
    """

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
        """Add what another one knows."""
        for key, channels in other.channels.items():
            self._add(key, channels)

    def _add(self, key: str, more: ChannelStatistics) -> None:
        known = self.channels.get(key)
        self.channels[key] = known.merge(more) if known else more

    def to_tensors(self) -> dict[str, Tensor]:
        """Return all that is known as ``<key>.<field>``."""
        names = [f.name for f in fields(ChannelStatistics)]
        items = self.channels.items()
        told = ((f"{key}.{name}", getattr(one, name)) for key, one in items for name in names)
        return {name: tensor.contiguous() for name, tensor in told}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], top: int = TOP_INPUTS
    ) -> DatasetStatistics:
        """Return what ``to_tensors`` described; further tensors are passed over."""
        made = cls(top)
        names = [f.name for f in fields(ChannelStatistics)]
        for name in tensors:
            key, _, field = name.rpartition(".")
            if field == names[0]:
                own = {name: tensors[f"{key}.{name}"] for name in names}
                made.channels[key] = ChannelStatistics(**own)
        return made


def _mean_and_std(
    kept: Tensor, sound: Tensor, count: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Of each channel, (C,); ``low`` and ``high`` are the bounds of its finite values."""
    largest = torch.where(count > 0, low.abs().maximum(high.abs()), 0)
    info = torch.finfo(kept.dtype)
    least, most = (info.tiny / info.eps**2) ** 0.5, info.max**0.5 * info.eps
    odd = (largest > most) | ((largest < least) & (largest > 0))
    exponent = torch.zeros_like(count)
    if bool(odd.any()):  # their squares may be infinite or 0: divided by a power of two first
        exponent = torch.where(odd, torch.frexp(largest).exponent, 0)
        kept = scale_by_power_of_two(kept, -exponent[:, None])
    mean = kept.sum((0, 2)) / count.clamp(min=1)
    m2 = torch.where(sound, kept - mean[:, None], 0).square().sum((0, 2))
    std = scale_by_power_of_two((m2 / count).sqrt(), exponent)
    return _bounded(scale_by_power_of_two(mean, exponent)), _bounded(std)


def _merged(
    one: ChannelStatistics, other: ChannelStatistics, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of both; ``hypot``, as the largest floats have no squares."""
    # Not counts divided by counts: of integers that would be float32.
    rest, share = (part.count.double() / total.clamp(min=1) for part in (one, other))
    delta = other.mean - one.mean
    far = delta.isinf()  # two means may be farther apart than the largest float
    mean = torch.where(far, one.mean * rest + other.mean * share, one.mean + delta * share)
    part = (share * rest).sqrt()
    apart = torch.where(far, (other.mean / 2 - one.mean / 2) * (2 * part), delta * part)
    within = torch.hypot(
        torch.where(one.count > 0, one.std, 0) * rest.sqrt(),
        torch.where(other.count > 0, other.std, 0) * share.sqrt(),
    )
    std = torch.where(total > 0, torch.hypot(within, apart), float("nan"))
    return _bounded(mean), _bounded(std)


def _bounded(values: Tensor) -> Tensor:
    """Means or deviations; those that were rounded past the largest float are the largest."""
    return values.nan_to_num(float("nan"))


def _binned(kept: Tensor, sound: Tensor) -> tuple[Tensor, int]:
    """Counts of the fine bins of each channel, (C, W), and the number of the first of them."""
    numbers = bin_numbers(kept)
    first, last = (int(edge) for edge in numbers.aminmax())
    width = last - first + 1
    places = torch.where(sound, numbers - first, width)  # one bin more, cut off again
    return count_bins(places.transpose(0, 1).flatten(1), width + 1)[:, :width], first


def _top(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest ``count`` of each line, (C, n), and their rows; of equal ones the lowest row."""
    missing = count - values.shape[1]
    if missing > 0:
        values = torch.nn.functional.pad(values, (0, missing), value=float("-inf"))
        rows = torch.nn.functional.pad(rows, (0, missing), value=-1)
    rows, order = rows.sort(dim=1, stable=True)
    values = values.gather(1, order)
    values, order = values.sort(dim=1, descending=True, stable=True)
    rows = torch.where(values.isinf(), -1, rows.gather(1, order))  # an input without a finite value
    return values[:, :count], rows[:, :count]
