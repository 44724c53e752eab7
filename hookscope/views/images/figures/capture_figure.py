"""Tensors of a file as a figure: each kind of plot reads the values that it draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hookscope.files.words import percent_text, ranges_text, shape_label
from hookscope.results.numpy_stats import summarize
from hookscope.results.stats import Stats
from hookscope.specs.patterns import ROOT
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import WHOLE, is_gradient
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.colors import PERCENTILE, nonfinite_text, percentile_bound, scale_for
from hookscope.views.images.feature_maps import (
    FeatureMaps,
    is_image_gradient,
    read_feature_maps,
    read_image_gradient,
)
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    SERIES,
    check_panel_count,
    draw_gridlines,
    escape_text,
    finish_figure,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import (
    Drawing,
    paper_style,
    quantity_name,
    recording_caption,
)
from hookscope.views.images.figures.grid import LINE, Grid, columns_for, draw_grid
from hookscope.views.images.layer_flow import draw_flow, layer_flows
from hookscope.views.images.matrices import draw_attention, draw_heat, read_heads, read_tokens
from hookscope.views.images.plot_choice import PlotChoice, TensorPart
from hookscope.views.images.tensor_view import Bin, histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, list[str]]  # a figure, and a line for each tensor in it

_BINS = 64
_WIDTH, _HEIGHT = 2.9, 2.1  # inches of a panel of a distribution
_PANEL = 1.15  # inches of the height of a map
_NARROWEST, _WIDEST = 0.5, 4.0  # of a map, in heights
_BETWEEN, _LETTER = 0.3, 0.07  # inches between the grids, and of a letter above them


def draw_capture(capture: CaptureFile, choice: PlotChoice, options: PlotOptions) -> Drawing:
    """Return the plot that was chosen."""
    with paper_style(options.dark):
        figure, shows = _KINDS[choice.kind](capture, choice.parts, options)
    return Drawing(figure, choice.kind, tuple(shows), options.dark)


def _maps(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> Drawn:
    # Channels are those of the last tensor, the output; an input may have fewer.
    blocks = []
    for part in parts:
        key, index, channels = part.record.key, part.index, options.channels
        whole = index == WHOLE and channels is None and options.dim is None
        if whole and is_image_gradient(capture, part.record):
            blocks.append(read_image_gradient(capture, part.record))
            continue
        if channels and part is not parts[-1]:
            first = PlotOptions(dim=options.dim, count=1)
            total = read_feature_maps(capture, key, index, first).total
            channels = [channel for channel in channels if channel < total]
            if not channels:
                continue
        chosen = replace(options, channels=channels)
        blocks.append(read_feature_maps(capture, key, index, chosen))
    shows = [
        f"{_title(block.record.key + block.part, block.record.shape)}"
        + (f": {block.noun} {ranges_text(block.channels)} of {block.total}" * bool(block.channels))
        + (f"; {block.note}" * bool(block.note))
        for block in blocks
    ]
    record = parts[-1].record
    call = f":{record.call}" if record.call > 1 else ""
    name = "the model" if record.module == ROOT else record.module
    title = f"{name}{call} ({record.type})"
    return draw_maps(blocks, title, recording_caption(capture.metadata), options.each), shows


def _hist(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> Drawn:
    check_panel_count(len(parts))
    histograms = []
    for part in parts:
        key, index = part.record.key, part.index
        stats = part.record.stats if index == WHOLE else summarize(capture.blocks(key, index))
        bins = histogram(capture.blocks(key, index), stats, _BINS)
        quantity = quantity_name(part.record.kind)
        histograms.append(ValueHistogram(part.name, bins, stats, quantity))
    title = f"{parts[0].name}: distribution" if len(parts) == 1 else "Distributions"
    figure = draw_hist(histograms, title, recording_caption(capture.metadata))
    return figure, _lines(capture, parts)


def _flow(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> Drawn:
    flows = layer_flows([part.record for part in parts], len(parts) < len(capture.records))
    shows = [f"{x.quantity}, {len(x.rows)} layer{'s' * (len(x.rows) != 1)}" for x in flows]
    quantities = [flow.quantity.partition(":")[0].capitalize() for flow in flows]
    title = f"{'s, '.join(dict.fromkeys(quantities))}s layer by layer"
    return draw_flow(flows, title, recording_caption(capture.metadata)), shows


def _heat(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> Drawn:
    check_panel_count(len(parts))
    tensors = [read_tokens(capture, part, options.dim, options.channels) for part in parts]
    title = "Channels by position"
    shows = [
        f"{line}; {tokens.note}" if tokens.note else line
        for line, tokens in zip(_lines(capture, parts), tensors, strict=True)
    ]
    return draw_heat(tensors, title, recording_caption(capture.metadata)), shows


def _attention(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> Drawn:
    layers = [read_heads(capture, part, options) for part in parts]
    shows = [
        f"{line}: heads {ranges_text(layer.heads)}"
        for line, layer in zip(_lines(capture, parts), layers, strict=True)
    ]
    title = f"{parts[0].record.module}: attention" if len(parts) == 1 else "Attention"
    figure = draw_attention(layers, title, recording_caption(capture.metadata), options.each)
    return figure, shows


def _lines(capture: CaptureFile, parts: Sequence[TensorPart]) -> list[str]:
    return [_title(part.name, capture.shape(part.record.key, part.index)) for part in parts]


def _title(name: str, shape: Sequence[int]) -> str:
    return f"{name} ({shape_label(shape)})"


@dataclass(frozen=True)
class ValueHistogram:
    """The histogram of one tensor, with its statistics and its name."""

    name: str
    histogram: tuple[Bin, ...]
    stats: Stats
    quantity: str


def draw_hist(tensors: Sequence[ValueHistogram], title: str, about: str) -> Figure:
    """Draw the histogram of each tensor; counts are on a logarithmic scale."""
    check_panel_count(len(tensors))
    columns = min(len(tensors), max(3, math.ceil(math.sqrt(len(tensors)))))
    rows = math.ceil(len(tensors) / columns)
    wide = _WIDTH if columns > 1 else 5.5
    figure, _ = new_figure(columns * wide, rows * _HEIGHT + 0.4, title, about)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, spread in zip(panels, tensors, strict=False):
        bins = spread.histogram
        name = escape_text(shorten_middle(spread.name, int(wide * 20)))
        numbers = _numbers(spread.stats)
        # The title of the figure names a single tensor.
        axes.set_title(numbers if len(tensors) == 1 else f"{name}\n{numbers}")
        axes.set_ylabel("entries")
        axes.set_xlabel(spread.quantity)
        if not bins:
            axes.text(0.5, 0.5, "no finite entry", ha="center", transform=axes.transAxes)
            continue
        for bin in bins:
            # A bin of one integer, or of entries that are all equal, has no width.
            no_width = bin.low == bin.high
            axes.bar(
                bin.low,
                bin.count,
                0.8 if no_width else bin.high - bin.low,
                align="center" if no_width else "edge",
                color=SERIES[0],
            )
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)  # otherwise a single entry would have no height
        draw_gridlines(axes)
    for axes in panels[len(tensors) :]:
        axes.set_axis_off()
    return finish_figure(figure)


def _numbers(stats: Stats) -> str:
    parts = [] if stats.mean is None else [f"mean {stats.mean:.3g}, std {stats.std:.3g}"]
    parts += [f"{percent_text(stats.zero_share)} zeros"] if stats.zeros else []
    parts += [f"{stats.nan} NaN"] if stats.nan else []
    parts += [f"{stats.inf} infinite"] if stats.inf else []
    return ", ".join(parts)


def draw_maps(blocks: Sequence[FeatureMaps], title: str, about: str, each: bool = False) -> Figure:
    """Draw feature maps as a grid for each tensor, the first on the left."""
    check_panel_count(sum(len(block.values) for block in blocks))
    heads = [_head(block, each) for block in blocks]
    head = max(map(len, heads)) * LINE
    grids = [_grid(block, each) for block in blocks]
    start = grids[0].start
    widths = [start + _LETTER * max(map(len, lines)) for lines in heads]
    if len(blocks) == 1:
        grids = [grids[0].filling(max(MIN_WIDTH, widths[0]))]
    widths = [max(grid.size[0], text) for grid, text in zip(grids, widths, strict=True)]
    height = head + max(grid.size[1] for grid in grids)
    wide = sum(widths) + _BETWEEN * (len(blocks) - 1)
    figure, foot = new_figure(wide, height, title, about, layout=None, left=start)
    top, left = foot + height, 0.0
    for block, grid, lines, width in zip(blocks, grids, heads, widths, strict=True):
        figure.text(
            (left + start) / figure.get_figwidth(),
            top / figure.get_figheight(),
            "\n".join(map(escape_text, lines)),
            va="top",
        )
        labels = [f"{block.noun[:-1]} {channel}" for channel in block.channels] or [""]
        draw_grid(
            figure,
            grid,
            list(block.values),
            labels,
            block.quantity,
            left,
            top - head,
            scale_for(block.record.kind),
        )
        left += width + _BETWEEN
    return finish_figure(figure)


def _grid(block: FeatureMaps, each: bool) -> Grid:
    count, height, width = block.values.shape
    share = min(max(width / height, _NARROWEST), _WIDEST)
    # Without a label there is a line all the same: the exponent of the colour bar stands in it.
    return Grid(count, columns_for(count, share), _PANEL * share, _PANEL, each)


def _head(block: FeatureMaps, each: bool) -> list[str]:
    shape = shape_label(block.record.shape)
    some = f"{len(block.channels)} of {block.total} {block.noun}" if block.channels else "one map"
    # Without channels the note says what the map is.
    parts = (some, *block.single) if block.channels else (some, *block.single, block.note)
    lines = [", ".join(filter(None, parts)), block.note if block.channels else ""]
    lines += [_percentile_text(block, each)] if is_gradient(block.record.kind) else []
    lines.append(nonfinite_text(block.values))
    return [f"{block.record.what}{block.part}, {shape}", *filter(None, lines)]


def _percentile_text(block: FeatureMaps, each: bool) -> str:
    """Where the colours of gradients end."""
    end = f"colours end at the {PERCENTILE}th percentile"
    if each and len(block.values) > 1:
        return f"{end} of each panel"
    sizes = np.abs(block.values[np.isfinite(block.values)])
    if not sizes.size:
        return ""
    bound, largest = percentile_bound(sizes), float(sizes.max())
    return f"{end}, {bound:.3g} (largest {largest:.3g})"


_KINDS: dict[str, Callable[[CaptureFile, Sequence[TensorPart], PlotOptions], Drawn]] = {
    "maps": _maps,
    "hist": _hist,
    "flow": _flow,
    "heat": _heat,
    "attention": _attention,
}
