"""Attributions as a picture: a bar for each token."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from hookscope.errors import RequestError
from hookscope.files.words import plural, token_text
from hookscope.results.attribution import Attribution
from hookscope.specs.attribution_options import METHODS, ROLLOUT
from hookscope.views.images.colors import DIVERGING
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.images.figures.canvas import (
    escape_text,
    finish_figure,
    new_figure,
    paper_style,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.text.attribution import explained_text, largest_tokens, sum_sentence

_WIDTH, _BAR_HEIGHT = 7.0, 0.2  # inches
_QUANTITIES = dict.fromkeys(METHODS, "contribution to the logit") | {
    ROLLOUT: "share of the attention"
}
_LETTERS = 24  # of a token beside its bar
MOST_TOKENS = 64  # of a text: those with the largest attributions
MOST_TEXTS = 16


def draw_attribution(result: Attribution) -> Drawing:
    """Draw one panel for each text: its tokens from top to bottom, and their attributions.

    Raises:
        RequestError: there are more texts than fit on a picture.
    """
    if len(result.rows) > MOST_TEXTS:
        raise RequestError(
            f"The picture would have {len(result.rows)} texts, and the limit is {MOST_TEXTS}.",
            "Give fewer texts, or write a page (-o attribution.html).",
        )
    panels = [largest_tokens(row, MOST_TOKENS) for row in result.rows]
    sums = [sum_sentence(result, number).rstrip(".") for number in range(len(panels))]
    heights = [max(len(panel), 1) * _BAR_HEIGHT + 0.75 for panel in panels]
    with paper_style(dark=False):
        figure, _ = new_figure(
            _WIDTH,
            sum(heights),
            f"Attribution to the tokens of the input, by {result.method}",
            "; ".join((recording_caption(result.metadata), *sums)),
        )
        axes_list = figure.subplots(
            len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
        ).flat
        for number, axes in enumerate(axes_list):
            _draw_panel(axes, result, number)
        finish_figure(figure)
    shows = tuple(plural(len(panel), "token") for panel in panels)
    return Drawing(figure, "attribution", shows)


def _draw_panel(axes: Axes, result: Attribution, number: int) -> None:
    tokens = largest_tokens(result.rows[number], MOST_TOKENS)
    scores = [one.score if math.isfinite(one.score) else 0.0 for one in tokens]
    ends = [DIVERGING[216 if score > 0 else 40] / 255 for score in scores]
    axes.barh(range(len(tokens)), scores, color=[tuple(end) for end in ends], height=0.8)
    axes.axvline(0, color="black", linewidth=0.6)
    names = [
        escape_text(shorten_middle(token_text(one.token.text), _LETTERS))
        + ("" if math.isfinite(one.score) else " (not finite)")
        for one in tokens
    ]
    axes.set_yticks(range(len(tokens)), names)
    axes.invert_yaxis()
    axes.set_title(escape_text(explained_text(result, number)), loc="left")
    axes.set_xlabel(_QUANTITIES[result.method])
