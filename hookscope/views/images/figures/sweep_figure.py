"""A sweep as a picture: layers by positions, heads or experts, each cell with its value."""

from __future__ import annotations

from hookscope.results.sweep import Sweep
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.figures.layer_map_figure import (
    LayerMapLabels,
    LayerMapPanel,
    draw_layer_map,
)
from hookscope.views.images.sweep_values import cell_text, sweep_scale, sweep_values
from hookscope.views.text.sweep import column_title, title_text

_WHOLE = "whole layer"


def draw_sweep(result: Sweep) -> Drawing:
    """Draw the map: layers from bottom to top, positions, heads or experts to the right.

    Raises:
        RequestError: there are more cells than fit on a picture.
    """
    texts = [[cell_text(result, cell) for cell in cells] for _, cells in result.by_layer()]
    columns = [column_title(result, n) or _WHOLE for n in range(len(result.columns))]
    labels = LayerMapLabels(
        title_text(result),
        recording_caption(result.metadata),
        result.metric,
        result.axis,
        result.axis or "column",
    )
    panel = LayerMapPanel(sweep_values(result), texts, columns)
    return draw_layer_map([panel], result.layers, sweep_scale(result), labels, "sweep")
