"""The table of a page of weights: a row for each tensor, with its histogram."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hookscope.file_analysis.weights.tensor_measures import (
    ReadProgress,
    TensorMeasures,
    cache_blocks,
)
from hookscope.files.progress import NamedProgress
from hookscope.files.words import (
    bytes_text,
    count_text,
    number_text,
    percent_text,
    shape_text,
    visible,
)
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.html.page import PageCell, PageColumn, PageRow
from hookscope.views.html.weights_page import WeightRow
from hookscope.views.images.tensor_view import Bin, histogram

BINS = 40
HEIGHT = 20  # of a histogram, in the units of its path

_NUMBERS = ("norm", "mean", "std", "min", "max")
WEIGHT_COLUMNS = (
    PageColumn("#", number=True, about="position in the tree"),
    PageColumn("tensor"),
    PageColumn("shape"),
    PageColumn("dtype"),
    PageColumn("size", number=True, about="as stored"),
    PageColumn("histogram", about="of the finite entries; heights are logarithmic"),
    *(PageColumn(title, number=True) for title in _NUMBERS),
    PageColumn("zeros", number=True, about="share of entries that are exactly zero"),
    PageColumn("NaN", number=True, about="number of entries that are NaN"),
    PageColumn("Inf", number=True, about="number of infinite entries"),
    PageColumn("note"),
)


def weight_rows(
    weights: WeightSet,
    shown: Sequence[tuple[int, TensorMeasures]],
    owners: Mapping[str, int],
    levels: Mapping[str, str],
    advance: NamedProgress | None,
) -> Iterable[WeightRow]:
    """Yield the row of each tensor; the tensors are read for their histograms."""
    progress = ReadProgress(sum(one.tensor.nbytes for _, one in shown), advance)
    known: dict[str, tuple[Bin, ...]] = {}
    for position, one in shown:
        tensor = one.tensor
        bins = known.get(tensor.tied_to, ())
        if one.stats is not None and not bins:
            blocks = cache_blocks(weights.blocks(tensor.name))
            bins = histogram(progress.watch(tensor, blocks), one.stats, BINS)
        known[tensor.name] = bins
        row = PageRow(owners[tensor.name], tuple(_cells(position, one)))
        about = f"Histogram of {visible(tensor.name)}: " + (
            f"{number_text(bins[0].low)} to {number_text(bins[-1].high)}, highest bar"
            f" {count_text(max(bin.count for bin in bins))}"
            if bins
            else "no finite entry"
        )
        level = levels.get(tensor.name, "")
        columns = len(bins) + 2 * (len(bins) == 1)
        yield WeightRow(visible(tensor.name), row, histogram_outline(bins), columns, about, level)


def _cells(position: int, one: TensorMeasures) -> Iterable[PageCell]:
    tensor, stats = one.tensor, one.stats
    yield PageCell(str(position), str(position))
    yield PageCell(visible(tensor.name))
    yield PageCell(shape_text(tensor.shape))
    yield PageCell(tensor.dtype)
    yield PageCell(bytes_text(tensor.nbytes), str(tensor.nbytes))
    yield PageCell("")  # the histogram
    if stats is None:
        yield from [PageCell("")] * (len(_NUMBERS) + 3)
        yield PageCell(visible(one.unread), loud=True)
        return
    for name in _NUMBERS:
        value = getattr(stats, name)
        yield PageCell(number_text(value), "" if value is None else repr(value))
    share = stats.zero_share if stats.numel else None
    yield PageCell(
        "" if share is None else percent_text(share), "" if share is None else repr(share)
    )
    for count in (stats.nan, stats.inf):
        yield PageCell(count_text(count), str(count), loud=bool(count))
    yield PageCell(
        f"= {visible(tensor.tied_to)}" if tensor.tied_to else "" if stats.numel else "empty"
    )


def histogram_outline(bins: Sequence[Bin]) -> str:
    """Return the outline of a histogram for a path: a step of width 1 for each bin.

    The height of a step is ``log(1 + count)``, and at least half a unit where something is. A
    single bin has an empty one on each side.

    Example:
        >>> histogram_outline([Bin(0, 1, 3), Bin(1, 2, 0), Bin(2, 3, 15)])
        'V10h1V20h1V0h1V20z'
    """
    if not bins:
        return ""
    largest = max(bin.count for bin in bins)
    steps = []
    for bin in bins:
        height = HEIGHT * math.log1p(bin.count) / math.log1p(largest)
        height = max(round(height * 2) / 2, 0.5) if bin.count else 0
        steps.append(f"V{HEIGHT - height:g}h1")
    if len(bins) == 1:
        steps = ["h1", *steps, f"V{HEIGHT}h1"]
    return "".join(steps) + f"V{HEIGHT}z"
