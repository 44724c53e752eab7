"""From tensors of a file to a picture: each kind reads what it needs and hands it to its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from hookscope.results.capture_file import CaptureFile
from hookscope.results.numpy_stats import summarize
from hookscope.specs.tensor_key import WHOLE
from hookscope.views.images.feature_maps import read_feature_maps
from hookscope.views.images.figure_labels import (
    quantity_name,
    ranges_text,
    recording_caption,
    shape_label,
)
from hookscope.views.images.figures import (
    attention_figure,
    flow_figure,
    heat_figure,
    hist_figure,
    maps_figure,
)
from hookscope.views.images.figures.canvas import check_panel_count, paper_style
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.layer_flow import layer_flows
from hookscope.views.images.matrices import read_heads, read_tokens
from hookscope.views.images.plot_choice import PlotChoice, TensorPart
from hookscope.views.images.tensor_view import histogram

_BINS = 64


@dataclass(frozen=True)
class FigureOptions:
    """Which channels and scales are wished for: see ``hookscope.plot``."""

    channels: Sequence[int] | None
    by: str
    count: int
    seed: int
    dim: int | None
    each: bool


Drawn = tuple[Figure, list[str]]  # and what is in it, a line for each tensor


def draw_capture(
    capture: CaptureFile, choice: PlotChoice, wishes: FigureOptions, dark: bool
) -> Drawing:
    """Return the picture of what was chosen."""
    with paper_style(dark):
        figure, shows = _KINDS[choice.kind](capture, choice.parts, wishes)
    return Drawing(figure, choice.kind, tuple(shows), dark)


def _maps(capture: CaptureFile, parts: Sequence[TensorPart], wishes: FigureOptions) -> Drawn:
    # Named channels are those of the last tensor, the output; an input may have fewer.
    blocks = []
    for part in parts:
        last = part is parts[-1]
        key, index, named = part.record.key, part.index, wishes.channels
        if named and not last:
            total = read_feature_maps(capture, key, index, dim=wishes.dim, count=1).total
            named = [c for c in named if c < total]
            if not named:
                continue
        blocks.append(
            read_feature_maps(
                capture,
                key,
                index,
                dim=wishes.dim,
                channels=named,
                by=wishes.by,
                count=wishes.count,
                seed=wishes.seed,
            )
        )
    shows = [
        f"{_told(block.record.key + block.part, block.record.shape)}"
        + (f": {block.noun} {ranges_text(block.channels)} of {block.total}" * bool(block.channels))
        + (f"; {block.note}" * bool(block.note))
        for block in blocks
    ]
    record = parts[-1].record
    title = f"{record.module}{f':{record.call}' if record.call > 1 else ''} ({record.type})"
    return maps_figure.draw(blocks, title, recording_caption(capture.metadata), wishes.each), shows


def _hist(capture: CaptureFile, parts: Sequence[TensorPart], wishes: FigureOptions) -> Drawn:
    check_panel_count(len(parts))
    spreads = []
    for part in parts:
        key, index = part.record.key, part.index
        stats = part.record.stats if index == WHOLE else summarize(capture.blocks(key, index))
        bins = histogram(capture.blocks(key, index), stats, _BINS)
        spreads.append(
            hist_figure.ValueHistogram(part.name, bins, stats, quantity_name(part.record.kind))
        )
    title = f"{parts[0].name}: distribution" if len(parts) == 1 else "Distributions"
    return hist_figure.draw(spreads, title, recording_caption(capture.metadata)), _lines(
        capture, parts
    )


def _flow(capture: CaptureFile, parts: Sequence[TensorPart], wishes: FigureOptions) -> Drawn:
    flows = layer_flows([part.record for part in parts], len(parts) < len(capture.records))
    shows = [f"{x.quantity}, {len(x.rows)} layer{'s' * (len(x.rows) != 1)}" for x in flows]
    title = f"{os.path.basename(str(capture.path))}: layer by layer"
    return flow_figure.draw(flows, title, recording_caption(capture.metadata)), shows


def _heat(capture: CaptureFile, parts: Sequence[TensorPart], wishes: FigureOptions) -> Drawn:
    check_panel_count(len(parts))
    tensors = [read_tokens(capture, part, wishes.dim, wishes.channels) for part in parts]
    title = "Channels by position"
    shows = [
        f"{line}; {tokens.note}" if tokens.note else line
        for line, tokens in zip(_lines(capture, parts), tensors, strict=True)
    ]
    return heat_figure.draw(tensors, title, recording_caption(capture.metadata)), shows


def _attention(capture: CaptureFile, parts: Sequence[TensorPart], wishes: FigureOptions) -> Drawn:
    layers = [
        read_heads(capture, part, wishes.channels, wishes.by, wishes.count, wishes.seed)
        for part in parts
    ]
    shows = [
        f"{line}: heads {ranges_text(layer.heads)}"
        for line, layer in zip(_lines(capture, parts), layers, strict=True)
    ]
    title = f"{parts[0].record.module}: attention" if len(parts) == 1 else "Attention"
    return attention_figure.draw(
        layers, title, recording_caption(capture.metadata), wishes.each
    ), shows


def _lines(capture: CaptureFile, parts: Sequence[TensorPart]) -> list[str]:
    return [_told(part.name, capture.shape(part.record.key, part.index)) for part in parts]


def _told(name: str, shape: Sequence[int]) -> str:
    return f"{name} ({shape_label(shape)})"


_KINDS: dict[str, Callable[[CaptureFile, Sequence[TensorPart], FigureOptions], Drawn]] = {
    "maps": _maps,
    "hist": _hist,
    "flow": _flow,
    "heat": _heat,
    "attention": _attention,
}
