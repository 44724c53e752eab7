"""The picture of ``cam`` as a figure, for the formats with text and lines: SVG and PDF."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from hookscope.views.images.cam_sheet import CamSheet, shortened
from hookscope.views.images.figures.canvas import FONT, escape_text, paper_style
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.figures.grid import add_panel


def draw_cam(sheet: CamSheet, title: str) -> Drawing:
    """Return the sheet as a drawing of the same size; ``title`` says what it shows."""
    width, height = (side / sheet.dpi for side in sheet.size)
    points = 72 / sheet.dpi  # of a pixel
    with paper_style(dark=False):
        figure = Figure(figsize=(width, height), dpi=sheet.dpi)
        for tile in sheet.tiles:
            tall, wide = tile.image.shape[:2]
            box = (tile.x, sheet.size[1] - tile.y - tall, wide, tall)
            panel = add_panel(figure, *(length / sheet.dpi for length in box))
            panel.imshow(tile.image, interpolation="none", aspect="auto")
            panel.set_axis_off()
        for label in sheet.labels:
            font = FontProperties(family=[FONT], size=sheet.font * label.scale * points)
            text = shortened(label, partial(_width_of, font=font, points=points))
            figure.text(
                label.x / sheet.size[0],
                1 - label.y / sheet.size[1],
                escape_text(text),
                va="baseline" if label.anchor == "bottom" else "top",  # of digits
                fontproperties=font,
            )
    return Drawing(figure, "cam", (title,))


def _width_of(text: str, font: FontProperties, points: float) -> float:
    """The width of a text in pixels, each of that many points."""
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), escape_text(text), prop=font).get_extents().width) / points
