"""The sheet of the inputs that excite units, as a figure: images, or texts."""

from __future__ import annotations

from dataclasses import replace

from hookscope.file_analysis.units.top_inputs import TopInputs
from hookscope.views.images.figures.cam_figure import draw_cam
from hookscope.views.images.figures.canvas import escape_text
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.top_sheet import top_sheet
from hookscope.views.images.top_text_sheet import top_text_sheet
from hookscope.views.text.top import top_title


def draw_top_inputs(result: TopInputs, dpi: int) -> Drawing:
    """Draw the sheet of pictures, or of texts.

    Raises:
        RequestError: the inputs are not files, or there are too many for one sheet.
    """
    sheet = top_text_sheet(result, dpi, escape_text) if result.texts else top_sheet(result, dpi)
    return replace(draw_cam(sheet, top_title(result)), kind="top")
