"""``--kind heat``: channels by position, such as those of tokens, one panel for each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from hookscope.views.images.colors import color_scale, nonfinite_text
from hookscope.views.images.figures.canvas import (
    check_panel_count,
    draw_image,
    escape_text,
    finish_figure,
    new_figure,
    token_tick,
)
from hookscope.views.images.matrices import TokenMatrix

_WIDTH, _HEIGHT = 6.5, 2.6  # inches of a panel
_LINE = 0.14  # inches of a position with the text of its token
_MAX_TOKENS = 64  # with more positions, they have numbers instead of the texts of tokens


def draw_heat(tensors: Sequence[TokenMatrix], title: str, about: str) -> Figure:
    """Draw each tensor with its own scale: positions from top to bottom, channels to the right."""
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
