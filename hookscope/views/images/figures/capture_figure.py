"""Tensors of a file as a figure: each kind of plot reads the values that it draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from hookscope.files.words import ranges_text, shape_label
from hookscope.results.numpy_stats import summarize
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import WHOLE
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.feature_maps import (
    is_image_gradient,
    read_feature_maps,
    read_image_gradient,
)
from hookscope.views.images.figure_labels import quantity_name, recording_caption
from hookscope.views.images.figures.canvas import check_panel_count, paper_style
from hookscope.views.images.figures.drawing import Drawing, FigureOptions
from hookscope.views.images.figures.hist_figure import ValueHistogram, draw_hist
from hookscope.views.images.figures.maps_figure import draw_maps
from hookscope.views.images.layer_flow import draw_flow, layer_flows
from hookscope.views.images.matrices import draw_attention, draw_heat, read_heads, read_tokens
from hookscope.views.images.plot_choice import PlotChoice, TensorPart
from hookscope.views.images.tensor_view import histogram

_BINS = 64

Drawn = tuple[Figure, list[str]]  # a figure, and a line for each tensor in it


def draw_capture(capture: CaptureFile, choice: PlotChoice, options: FigureOptions) -> Drawing:
    """Return the plot that was chosen."""
    with paper_style(options.dark):
        figure, shows = _KINDS[choice.kind](capture, choice.parts, options)
    return Drawing(figure, choice.kind, tuple(shows), options.dark)


def _maps(capture: CaptureFile, parts: Sequence[TensorPart], options: FigureOptions) -> Drawn:
    # Channels are those of the last tensor, the output; an input may have fewer.
    blocks = []
    for part in parts:
        key, index, channels = part.record.key, part.index, options.channels
        whole = index == WHOLE and channels is None and options.dim is None
        if whole and is_image_gradient(capture, part.record):
            blocks.append(read_image_gradient(capture, part.record))
            continue
        if channels and part is not parts[-1]:
            total = read_feature_maps(capture, key, index, dim=options.dim, count=1).total
            channels = [channel for channel in channels if channel < total]
            if not channels:
                continue
        blocks.append(
            read_feature_maps(
                capture,
                key,
                index,
                dim=options.dim,
                channels=channels,
                by=options.by,
                count=options.count,
                seed=options.seed,
            )
        )
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


def _hist(capture: CaptureFile, parts: Sequence[TensorPart], options: FigureOptions) -> Drawn:
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


def _flow(capture: CaptureFile, parts: Sequence[TensorPart], options: FigureOptions) -> Drawn:
    flows = layer_flows([part.record for part in parts], len(parts) < len(capture.records))
    shows = [f"{x.quantity}, {len(x.rows)} layer{'s' * (len(x.rows) != 1)}" for x in flows]
    quantities = [flow.quantity.partition(":")[0].capitalize() for flow in flows]
    title = f"{'s, '.join(dict.fromkeys(quantities))}s layer by layer"
    return draw_flow(flows, title, recording_caption(capture.metadata)), shows


def _heat(capture: CaptureFile, parts: Sequence[TensorPart], options: FigureOptions) -> Drawn:
    check_panel_count(len(parts))
    tensors = [read_tokens(capture, part, options.dim, options.channels) for part in parts]
    title = "Channels by position"
    shows = [
        f"{line}; {tokens.note}" if tokens.note else line
        for line, tokens in zip(_lines(capture, parts), tensors, strict=True)
    ]
    return draw_heat(tensors, title, recording_caption(capture.metadata)), shows


def _attention(capture: CaptureFile, parts: Sequence[TensorPart], options: FigureOptions) -> Drawn:
    layers = [
        read_heads(capture, part, options.channels, options.by, options.count, options.seed)
        for part in parts
    ]
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


_KINDS: dict[str, Callable[[CaptureFile, Sequence[TensorPart], FigureOptions], Drawn]] = {
    "maps": _maps,
    "hist": _hist,
    "flow": _flow,
    "heat": _heat,
    "attention": _attention,
}
