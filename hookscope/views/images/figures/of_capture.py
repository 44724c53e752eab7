"""From tensors of a file to a picture: each kind reads what it needs and hands it to its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from hookscope.results.numpy_stats import summarize
from hookscope.results.reader import OpenCapture
from hookscope.specs.tensor_key import WHOLE
from hookscope.views.images.choosing import Choice, Part
from hookscope.views.images.figures import attention, flow, heat, hist, maps
from hookscope.views.images.figures.canvas import demand_room, paper
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.flows import flows_of
from hookscope.views.images.maps import feature_maps
from hookscope.views.images.matrices import heads_of, tokens_of
from hookscope.views.images.values import histogram
from hookscope.views.images.wording import about, numbers_text, quantity_of, shape_text

_BINS = 64


@dataclass(frozen=True)
class Wishes:
    """Which channels and scales are wished for: see ``hookscope.plot``."""

    channels: Sequence[int] | None
    by: str
    count: int
    seed: int
    dim: int | None
    each: bool


Drawn = tuple[Figure, list[str]]  # and what is in it, a line for each tensor


def draw(capture: OpenCapture, choice: Choice, wishes: Wishes, dark: bool) -> Drawing:
    """Return the picture of what was chosen."""
    with paper(dark):
        figure, shows = _KINDS[choice.kind](capture, choice.parts, wishes)
    return Drawing(figure, choice.kind, tuple(shows), dark)


def _maps(capture: OpenCapture, parts: Sequence[Part], wishes: Wishes) -> Drawn:
    # Named channels are those of the last tensor, the output; an input may have fewer.
    blocks = []
    for part in parts:
        last = part is parts[-1]
        key, index, named = part.record.key, part.index, wishes.channels
        if named and not last:
            total = feature_maps(capture, key, index, dim=wishes.dim, count=1).total
            named = [c for c in named if c < total]
            if not named:
                continue
        blocks.append(
            feature_maps(
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
        + (f": {block.noun} {numbers_text(block.channels)} of {block.total}" * bool(block.channels))
        + (f"; {block.note}" * bool(block.note))
        for block in blocks
    ]
    record = parts[-1].record
    title = f"{record.module}{f':{record.call}' if record.call > 1 else ''} ({record.type})"
    return maps.draw(blocks, title, about(capture.metadata), wishes.each), shows


def _hist(capture: OpenCapture, parts: Sequence[Part], wishes: Wishes) -> Drawn:
    demand_room(len(parts))
    spreads = []
    for part in parts:
        key, index = part.record.key, part.index
        stats = part.record.stats if index == WHOLE else summarize(capture.blocks(key, index))
        bins = histogram(capture.blocks(key, index), stats, _BINS)
        spreads.append(hist.Spread(part.name, bins, stats, quantity_of(part.record.kind)))
    title = f"{parts[0].name}: distribution" if len(parts) == 1 else "Distributions"
    return hist.draw(spreads, title, about(capture.metadata)), _lines(capture, parts)


def _flow(capture: OpenCapture, parts: Sequence[Part], wishes: Wishes) -> Drawn:
    flows = flows_of([part.record for part in parts], len(parts) < len(capture.records))
    shows = [f"{x.quantity}, {len(x.rows)} layer{'s' * (len(x.rows) != 1)}" for x in flows]
    title = f"{os.path.basename(str(capture.path))}: layer by layer"
    return flow.draw(flows, title, about(capture.metadata)), shows


def _heat(capture: OpenCapture, parts: Sequence[Part], wishes: Wishes) -> Drawn:
    demand_room(len(parts))
    tensors = [tokens_of(capture, part, wishes.dim, wishes.channels) for part in parts]
    title = "Channels by position"
    shows = [
        f"{line}; {tokens.note}" if tokens.note else line
        for line, tokens in zip(_lines(capture, parts), tensors, strict=True)
    ]
    return heat.draw(tensors, title, about(capture.metadata)), shows


def _attention(capture: OpenCapture, parts: Sequence[Part], wishes: Wishes) -> Drawn:
    layers = [
        heads_of(capture, part, wishes.channels, wishes.by, wishes.count, wishes.seed)
        for part in parts
    ]
    shows = [
        f"{line}: heads {numbers_text(layer.heads)}"
        for line, layer in zip(_lines(capture, parts), layers, strict=True)
    ]
    title = f"{parts[0].record.module}: attention" if len(parts) == 1 else "Attention"
    return attention.draw(layers, title, about(capture.metadata), wishes.each), shows


def _lines(capture: OpenCapture, parts: Sequence[Part]) -> list[str]:
    return [_told(part.name, capture.shape(part.record.key, part.index)) for part in parts]


def _told(name: str, shape: Sequence[int]) -> str:
    return f"{name} ({shape_text(shape)})"


_KINDS: dict[str, Callable[[OpenCapture, Sequence[Part], Wishes], Drawn]] = {
    "maps": _maps,
    "hist": _hist,
    "flow": _flow,
    "heat": _heat,
    "attention": _attention,
}
