"""The logit lens as a picture: layers by positions, each cell with its most probable token."""

from __future__ import annotations

import numpy as np

from hookscope.files.words import token_text
from hookscope.results.lens import Lens
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.figures.layer_map_figure import (
    LayerMapLabels,
    LayerMapPanel,
    draw_layer_map,
)

MOST_POSITIONS = 64  # that are drawn, the last ones


def draw_lens(result: Lens) -> Drawing:
    """Draw one panel for each text: layers from bottom to top, positions to the right.

    The colour of a cell is the probability of its most probable token, which is written into it.

    Raises:
        RequestError: there are more cells than fit on a picture.
    """
    panels = [_panel(result, n) for n in range(len(result.rows)) if result.real_positions(n)]
    labels = LayerMapLabels(
        "Most probable next token at each layer",
        recording_caption(result.metadata),
        "probability",
        "after",
    )
    return draw_layer_map(panels, result.layers, ColorScale(0.0, 1.0), labels, "lens")


def _panel(result: Lens, number: int) -> LayerMapPanel:
    rows = [cells[-MOST_POSITIONS:] for _, cells in result.by_layer(number)]
    best = [[cell.top[0] for cell in cells] for cells in rows]
    values = [[candidate.probability for candidate in row] for row in best]
    texts = [[token_text(candidate.token.text) for candidate in row] for row in best]
    tokens = result.rows[number].tokens
    positions = [cell.position for cell in rows[0]]
    columns = [token_text(tokens[n].text) if tokens else str(n) for n in positions]
    return LayerMapPanel(np.array(values, dtype=np.float64), texts, columns)
