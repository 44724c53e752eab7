"""Tensors as matrices: channels by position, and the weights of attention head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.words import shape_label
from hookscope.results.dimensions import find_channel_dim
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.results.tokens import sequence_dims
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import WHOLE
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.colors import color_scale, nonfinite_text
from hookscope.views.images.feature_maps import (
    channels_last_note,
    check_channels,
    check_dim,
    pick_channels,
)
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    check_panel_count,
    draw_image,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    token_tick,
)
from hookscope.views.images.figures.drawing import quantity_name
from hookscope.views.images.figures.grid import LINE, Grid, columns_for, draw_grid
from hookscope.views.images.plot_choice import TensorPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.5, 2.6  # inches of a panel
_LINE = 0.14  # inches of a position with the text of its token
_MAX_TOKENS = 64  # with more positions, they have numbers instead of the texts of tokens
_PANEL, _NUMBERS = 1.5, 0.3  # inches of a panel, and of the numbers beside it
_TOKEN_LINE = 0.13  # inches of a position with the text of its token
_TICK = 0.1  # inches of a tick and of the gap to its label
_NAME = 8.0  # points of the name of a layer
_MOST_PANEL_TOKENS = 24  # with more positions, they have numbers instead of the texts of tokens


@dataclass(frozen=True)
class TokenMatrix:
    """One tensor as ``(positions, channels)``."""

    name: str
    values: NDArray[Any]
    channels: tuple[int, ...]
    quantity: str
    note: str
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionHeads:
    """Attention weights, ``(heads, queries, keys)``, the heads, and the tokens if known."""

    name: str
    values: NDArray[Any]
    heads: tuple[int, ...]
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def read_tokens(
    capture: CaptureFile, part: TensorPart, dim: int | None, channels: Sequence[int] | None
) -> TokenMatrix:
    """Read the first sample as positions by channels; a slice whole, with its channels last."""
    shape = capture.shape(part.record.key, part.index)
    whole = part.index == WHOLE
    record = part.record
    along = len(shape) - 1
    if whole:
        along = find_channel_dim(record.type, record.kind, shape, capture.image)
    if dim is not None:
        check_dim(dim, len(shape), part.name)
        along = dim % len(shape)
    if whole and len(shape) > 2 and along > 0 and shape[0]:
        array, along = capture.tensor(part.record.key, (0,)), along - 1
    else:
        array = capture.tensor(part.record.key, part.index)
    if array.ndim < 1 or not array.size:
        raise RequestError(
            f"{part.name} ({shape_label(shape)}) has no positions to plot.", "Use --kind hist."
        )
    table = np.moveaxis(magnitude(array), along, -1)
    table = table.reshape(-1, table.shape[-1])
    check_channels(channels or (), table.shape[1], part.name)
    chosen = tuple(channels or range(table.shape[1]))
    note = channels_last_note(record, capture.image) if whole and dim is None else ""
    tokens: tuple[str, ...] = ()
    if whole and along == 1 and len(shape) == 3:
        tokens = _tokens_along(capture, record, 1)
    quantity = quantity_name(record.kind)
    return TokenMatrix(part.name, table[:, list(chosen)], chosen, quantity, note, tokens)


def _tokens_along(capture: CaptureFile, record: Record, dim: int) -> tuple[str, ...]:
    """The tokens of the first row along a dimension; empty if it is not the sequence."""
    prompt = sequence_dims(record, capture.metadata).get(dim)
    return () if prompt is None else tuple(prompt.label(0, n) for n in range(prompt.length))


def read_heads(capture: CaptureFile, part: TensorPart, options: PlotOptions) -> AttentionHeads:
    """Read some heads of a tensor ``(batch, heads, queries, keys)``, of the first sample.

    In a slice, and if heads were averaged, all dimensions before queries and keys are heads.
    """
    key, shape = part.record.key, capture.shape(part.record.key, part.index)
    first = part.index == WHOLE and len(shape) > 2 and shape[0]
    array = capture.tensor(key, (0,) if first else part.index)
    if array.ndim < 2 or not array.size:
        raise RequestError(
            f"{part.name} ({shape_label(shape)}) is not a matrix of queries and keys.",
            "Leave out the slice, or use a shorter one: [0,3] is the fourth head.",
        )
    heads = array.reshape(-1, *array.shape[-2:])
    chosen = pick_channels(heads, part.name, options)
    sides = [_tokens_along(capture, part.record, len(shape) - n) if first else () for n in (2, 1)]
    return AttentionHeads(part.name, heads[list(chosen)], chosen, *sides)


def draw_heat(tensors: Sequence[TokenMatrix], title: str, about: str) -> Figure:
    """Draw each tensor with its own scale: positions from top to bottom, channels to the right."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    check_panel_count(len(tensors))
    nonfinite = nonfinite_text(np.concatenate([tokens.values.ravel() for tokens in tensors]))
    about = "; ".join(filter(None, (about, nonfinite)))
    heights = [max(_HEIGHT, _labelled_count(tokens) * _LINE + 0.6) for tokens in tensors]
    figure, _ = new_figure(_WIDTH, sum(heights) + 0.3, title, about)
    panels = figure.subplots(len(tensors), 1, squeeze=False, height_ratios=heights).flat
    for axes, tokens in zip(panels, tensors, strict=True):
        names = len(tokens.channels)
        shown = draw_image(axes, tokens.values, color_scale(tokens.values), aspect="auto")
        figure.colorbar(shown, ax=axes, label=tokens.quantity, pad=0.02)
        axes.set_title(escape_text(tokens.name))
        axes.set_ylabel("position")
        axes.set_xlabel("channel")
        for axis, size, limit in ((axes.yaxis, len(tokens.values), 6), (axes.xaxis, names, 24)):
            every = FixedLocator(list(range(size))) if size <= limit else None
            axis.set_major_locator(every or MaxNLocator(min(limit, 8), integer=True))
        if _labelled_count(tokens):
            texts = [token_tick(text) for text in tokens.tokens]
            axes.set_yticks(range(len(texts)), texts)
        axes.xaxis.set_major_formatter(FuncFormatter(_ChannelLabels(tokens.channels)))
    return finish_figure(figure)


def _labelled_count(tokens: TokenMatrix) -> int:
    """The number of positions that are labelled with the texts of their tokens."""
    return len(tokens.tokens) if len(tokens.tokens) <= _MAX_TOKENS else 0


class _ChannelLabels:
    """The number of the channel at a position of the axis."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        self.channels = channels

    def __call__(self, at: float, position: int | None = None) -> str:
        inside = 0 <= round(at) < len(self.channels)
        return str(self.channels[round(at)]) if inside else ""


def draw_attention(
    layers: Sequence[AttentionHeads], title: str, about: str, each: bool = False
) -> Figure:
    """Draw a panel for each head: queries from top to bottom, keys from left to right."""
    check_panel_count(sum(len(layer.heads) for layer in layers))
    most = max(len(layer.heads) for layer in layers)
    columns = most if len(layers) > 1 else columns_for(most, 1)
    # All grids have one layout, so that panels of several layers stand below each other.
    labelled = all(
        0 < len(side) <= _MOST_PANEL_TOKENS for x in layers for side in (x.queries, x.keys)
    )
    ticks = [token_tick(text) for x in layers for text in (*x.queries, *x.keys)] if labelled else []
    side = max(_PANEL, *(max(x.values.shape[1:]) * _TOKEN_LINE for x in layers if labelled), 0.0)
    beside = max(_NUMBERS, label_inches(ticks) + _TICK)
    plain = [
        Grid(len(layer.heads), columns, side, side, each, left=beside, below=beside)
        for layer in layers
    ]
    grids = [grid.filling(MIN_WIDTH) for grid in plain]
    name = LINE * (len(layers) > 1)
    height = sum(grid.size[1] + name for grid in grids)
    nonfinite = nonfinite_text(np.concatenate([layer.values.ravel() for layer in layers]))
    foot_text = "; ".join(filter(None, ("queries downwards, keys to the right", about, nonfinite)))
    start = grids[0].start
    names = label_inches((escape_text(layer.name) for layer in layers), _NAME)
    width = max(grids[0].size[0], start + names)
    figure, foot = new_figure(width, height, title, foot_text, layout=None, left=start)
    top = foot + height
    for layer, grid in zip(layers, grids, strict=True):
        if name:
            figure.text(
                start / figure.get_figwidth(),
                top / figure.get_figheight(),
                escape_text(layer.name),
                va="top",
            )
        labels = [f"head {head}" for head in layer.heads]
        images = list(layer.values)
        panels = draw_grid(figure, grid, images, labels, "attention weight", 0, top - name)
        for panel in panels:
            _set_ticks(panel, layer, labelled=labelled)
        top -= grid.size[1] + name
    return finish_figure(figure)


def _set_ticks(panel: Axes, layer: AttentionHeads, *, labelled: bool) -> None:
    """Name the queries and keys of a panel, or number the first and the last."""
    queries, keys = layer.values.shape[1:]
    if labelled:
        panel.set_yticks(range(queries), [token_tick(text) for text in layer.queries])
        panel.set_xticks(range(keys), [token_tick(text) for text in layer.keys], rotation=90)
    else:
        panel.set_yticks(sorted({0, queries - 1}))
        panel.set_xticks(sorted({0, keys - 1}))
