"""A sheet of the texts that excite units most and least, with the token in brackets."""

from __future__ import annotations

from collections.abc import Callable

from hookscope.errors import RequestError
from hookscope.file_analysis.units.top_inputs import RankedInput, TopInputs
from hookscope.files.words import number_text
from hookscope.views.images.cam_sheet import BASE_DPI, CamSheet, Label
from hookscope.views.text.text_context import marked_text
from hookscope.views.text.top import input_name, quantile_text, top_title

CELLS = 100  # of a text
LETTER = 0.58  # width of one, as a share of the size of the font; more than most have
# Lengths in pixels at 150 dots per inch; the last three are columns beside the text.
GAP, LINE, FONT, END, VALUE, NAME = 10, 17, 12, 60, 80, 200
MOST_PIXELS = 65_500  # of a side of a JPEG file


def top_text_sheet(result: TopInputs, dpi: int, shown: Callable[[str], str]) -> CamSheet:
    """Return the sheet: for each unit its quantiles, and a line for each text of both ends.

    Args:
        result: the ranking of texts.
        dpi: pixels per inch.
        shown: escapes characters as the sheet will show them.

    Raises:
        RequestError: there are too many texts for one picture.
    """
    gap, line, font, end, value, name = (
        max(round(n * dpi / BASE_DPI), 1) for n in (GAP, LINE, FONT, END, VALUE, NAME)
    )
    text = round(CELLS * font * LETTER)
    width = gap + end + value + text + gap + name
    labels = [Label(gap, gap, top_title(result), width)]
    y = gap + 2 * line
    for unit in result.units:
        heading = f"{result.what} {unit.unit}: quantiles {quantile_text(unit)}"
        labels.append(Label(gap, y, heading, width))
        y += line
        for title, inputs in (("most", unit.most), ("least", unit.least)):
            labels.append(Label(gap, y, title, end))
            for ranked in inputs:
                at = gap + end
                labels.append(Label(at, y, number_text(ranked.value), value))
                labels.append(Label(at + value, y, _content(ranked, shown), text))
                labels.append(Label(at + value + text + gap, y, input_name(ranked), name))
                y += line
            y += line // 2
        y += line // 2
    for note in result.notes:
        labels.append(Label(gap, y, note, width))
        y += line
    if y + gap > MOST_PIXELS:
        raise RequestError(
            f"The sheet would be {y + gap} pixels high, and the limit is {MOST_PIXELS}.",
            "Name fewer --units, or a smaller --count or --dpi.",
        )
    return CamSheet((width + gap, y + gap), (), tuple(labels), font, dpi)


def _content(ranked: RankedInput, shown: Callable[[str], str]) -> str:
    """The text, after the number of the token if it cannot be marked."""
    text = marked_text(ranked, CELLS, shown)
    if ranked.token is None and ranked.position is not None:
        return f"position {ranked.position[0]}  {text}"
    return text
