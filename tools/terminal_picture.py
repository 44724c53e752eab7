"""Draws ``docs/images/show.svg``: what ``hookscope show`` prints in a terminal of true colour.

``python -m tools.terminal_picture``. The lines are those of the command's own renderer. Rich's own
export to SVG leaves gaps between half blocks, so each of them is drawn here as two rectangles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

from hookscope.specs.plot_options import PlotOptions
from hookscope.stores.capture_file import open_capture
from hookscope.views import display
from hookscope.views.images.feature_maps import read_feature_maps
from hookscope.views.text.terminal_maps import map_lines
from hookscope.views.text.text_table import TextOptions

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "sample_models/five.safetensors"
COLUMNS, LINES = 88, 22
NBSP = "\u00a0"  # plain spaces in a row would be drawn as one
WIDE, HIGH, EDGE = 8, 17, 14  # of a cell, and of the margin


def lines() -> list[Text]:
    """Return two commands with what each prints."""
    capture = open_capture(ROOT / SAMPLE)
    maps = read_feature_maps(capture, "relu1/output", options=PlotOptions(by="strength", count=10))
    return [
        Text(f"$ hookscope show {SAMPLE}", "bold"),
        *display.text(capture, TextOptions(COLUMNS)),
        Text(),
        Text(f"$ hookscope show {SAMPLE} relu1 --map --by strength --count 10", "bold"),
        *map_lines(maps, (COLUMNS, LINES), colored=True),
    ]


def shapes(line: Text, top: int) -> Iterator[str]:
    """Yield the SVG of a line: rectangles for half blocks, text for all else."""
    at = EDGE
    rendered = line.render(Console(width=COLUMNS, color_system="truecolor"))
    for segment in Segment.simplify(rendered):
        style = segment.style or Style()
        for block, signs in groupby(segment.text, "▀".__eq__):
            text = "".join(signs)
            width = cell_len(text) * WIDE
            if block:
                halves = [(style.color, 0, 9), (style.bgcolor, 9, 8)]
                same = style.color == style.bgcolor
                for color, y, height in [(style.color, 0, HIGH)] if same else halves:
                    if color:
                        fill = color.get_truecolor(THEME).hex
                        box = f'x="{at}" y="{top + y}" width="{width}" height="{height}"'
                        yield f'<rect {box} fill="{fill}"/>'
            elif text.strip():
                look = f' fill="{style.color.get_truecolor(THEME).hex}"' if style.color else ""
                look += ' font-weight="bold"' if style.bold else ""
                look += ' opacity="0.7"' if style.dim else ""
                place = f'x="{at}" y="{top + 13}" textLength="{width}"'
                yield f"<text {place}{look}>{escape(text.replace(' ', NBSP))}</text>"
            at += width


def main() -> None:
    """Write the picture."""
    shown = lines()
    width, height = COLUMNS * WIDE + 2 * EDGE, len(shown) * HIGH + 2 * EDGE
    drawn = [shape for i, line in enumerate(shown) for shape in shapes(line, EDGE + i * HIGH)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13"'
        ' font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"'
        f' fill="{THEME.foreground_color.hex}"'
        ' shape-rendering="crispEdges">'
    )
    paper = f'<rect width="{width}" height="{height}" rx="8" fill="{THEME.background_color.hex}"/>'
    target = ROOT / "docs" / "images" / "show.svg"
    target.write_text("\n".join([head, paper, *drawn, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
