"""The sheet of the inputs that excite units, as a figure."""

from __future__ import annotations

from dataclasses import replace

from hookscope.results.units.top_inputs import TopInputs
from hookscope.views.images.figures.cam_figure import draw_cam
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.top_sheet import top_sheet
from hookscope.views.text.top import top_title


def draw_top_inputs(result: TopInputs, dpi: int) -> Drawing:
    """Draw the sheet of pictures.

    Raises:
        RequestError: the inputs are not files, or there are too many pictures.
    """
    return replace(draw_cam(top_sheet(result, dpi), top_title(result)), kind="top")
