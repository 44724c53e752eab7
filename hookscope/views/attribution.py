"""Attributions as text: the coloured text, a table of the tokens, and the sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.files.words import number_text, plural, token_text
from hookscope.results.attribution import Attribution, AttributionRow, TokenAttribution
from hookscope.specs.attribution_options import METHODS, ROLLOUT
from hookscope.views.display import View, filed_document
from hookscope.views.html.analysis_page import AnalysisPage, PageText, color_class
from hookscope.views.images.colors import DIVERGING, ColorScale
from hookscope.views.images.figures.canvas import (
    escape_text,
    finish_figure,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style, recording_caption
from hookscope.views.layer_map import color_style
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TEXTS = 4  # of a batch, on a terminal; a pipe gets all
MAX_TOKENS = 24  # of the table of a text, on a terminal
_BAR = 16  # cells of the longest bar
COLUMNS = (  # of the table of all tokens of all texts
    *(Column("token"), Column("text", right=True), Column("position", "at", right=True)),
    *(Column("attribution", "attr.", right=True), Column("target")),
)
SQUEEZE = (*shorten("attribution", "position"), *drop("target", "text"))

_WIDTH, _BAR_HEIGHT = 7.0, 0.2  # inches
_QUANTITIES = dict.fromkeys(METHODS, "contribution to the logit") | {
    ROLLOUT: "share of the attention"
}
_LETTERS = 24  # of a token beside its bar
MOST_TOKENS = 64  # of a text: those with the largest attributions
MOST_TEXTS = 16


def attribution_lines(result: Attribution, options: TextOptions) -> list[Text]:
    """Return the whole summary: in a pipe one line for each token."""
    notes = styled_lines(((note, NOTICE_STYLE) for note in result.notes), options)
    sums = [sum_sentence(result, number) for number in range(len(result.rows))]
    if options.lists_rows:
        lines = [line for text in sums for line in sentence(text, options)]
        table = Table(COLUMNS, tuple(_token_rows(result, options)), SQUEEZE, note="")
        return join_blocks(result_table(table, options), [*lines, *notes], options=options)
    blocks = []
    for number, row in enumerate(result.rows[:MAX_TEXTS]):
        blocks.append(sentence(title_of(result, number, options.ascii), options, "bold"))
        if not options.is_page:
            blocks.append(_colored_lines(row, options))
        blocks.append(_token_table(row, options) + sentence(sums[number], options))
    left = len(result.rows) - MAX_TEXTS
    if left > 0:
        blocks.append(sentence(f"... and {plural(left, 'more text')}.", options, "dim"))
    return join_blocks(*blocks, notes, options=options)


def title_of(result: Attribution, number: int, ascii: bool = False) -> str:
    """Return what is explained in a text, and by which method."""
    return f"{explained_text(result, number, ascii)}, by {result.method}:"


def explained_text(result: Attribution, number: int, ascii: bool = False) -> str:
    """Return what is explained in a text."""
    row = result.rows[number]
    text = f"Text {number}: w" if len(result.rows) > 1 else "W"
    target = repr(token_text(row.target.text, ascii))
    other = f" against {token_text(result.against.text, ascii)!r}" if result.against else ""
    where = "" if row.position is None else f" after position {row.position}"
    return f"{text}hat {target}{other}{where} is predicted from"


def sum_sentence(result: Attribution, number: int) -> str:
    """Return the sum of the attributions of a text, beside the difference of the scores."""
    row = result.rows[number]
    text = f"Text {number}: sum" if len(result.rows) > 1 else "Sum"
    start = f"{text} {number_text(row.total)}, expected"
    if row.baseline_score is None:
        return f"{start} 1, the sum of a row of attention weights."
    exact = {
        "integrated": "",
        "gradxinput": " if the model is linear",
        "occlusion": " if no two tokens interact",
    }[result.method]
    return (
        f"{start} {number_text(row.difference)}{exact} (score {number_text(row.score)},"
        f" baseline {result.baseline} {number_text(row.baseline_score)})."
    )


def scale_of(row: AttributionRow) -> ColorScale:
    """Return the colours of a text: zero in the middle, the largest attribution at an end."""
    sizes = [abs(one.score) for one in row.tokens if math.isfinite(one.score)]
    bound = max(sizes, default=0.0)
    return ColorScale(-bound, bound, diverging=True)


def largest_tokens(row: AttributionRow, count: int) -> tuple[TokenAttribution, ...]:
    """Return the tokens with the largest attributions by size, in the order of the text."""

    def size(one: TokenAttribution) -> float:
        return abs(one.score) if math.isfinite(one.score) else math.inf

    chosen = sorted(row.tokens, key=size, reverse=True)[:count]
    return tuple(sorted(chosen, key=lambda one: one.position))


def _colored_lines(row: AttributionRow, options: TextOptions) -> list[Text]:
    """The text with a colour behind each token, in lines of the width."""
    assert options.width is not None
    scale = scale_of(row)
    lines, used = [Text()], 0
    for one in row.tokens:
        text = token_text(one.token.text, options.ascii)
        length = cell_len(text)
        if used and used + length > options.width:
            lines.append(Text())
            used = 0
        lines[-1].append(text, color_style(scale, one.score))
        used += length
    return lines


def _token_table(row: AttributionRow, options: TextOptions) -> list[Text]:
    shown = largest_tokens(row, MAX_TOKENS)
    bound = scale_of(row).high or 1.0
    columns = (
        *(Column("token"), Column("position", "at", right=True)),
        *(Column("attribution", "attr.", right=True), Column("")),
    )
    rows = tuple(
        Row.of(
            Cell(token_text(one.token.text, options.ascii)),
            *(count_cell(one.position), number_cell(one.score)),
            Cell(_bar(one.score, bound)),
        )
        for one in shown
    )
    squeeze = drop("")
    lines = table_lines(Table(columns, rows, squeeze, note=""), options)
    hidden = len(row.tokens) - len(shown)
    if hidden:
        lines += sentence(
            f"{plural(hidden, 'token')} with smaller attributions are in the file.", options, "dim"
        )
    return lines


def _bar(score: float, bound: float) -> str:
    if not math.isfinite(score):
        return "!"
    return ("+" if score > 0 else "-") * round(_BAR * abs(score) / bound)


def _token_rows(result: Attribution, options: TextOptions) -> Iterator[Row]:
    for number, one in result.cells():
        target = token_text(result.rows[number].target.text, options.ascii)
        text = token_text(one.token.text, options.ascii)
        yield Row.of(
            *(Cell(text), count_cell(number), count_cell(one.position)),
            *(number_cell(one.score), Cell(target)),
        )


def draw_attribution(result: Attribution) -> Drawing:
    """Draw one panel for each text: its tokens from top to bottom, and their attributions."""
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


def write_attribution_page(result: Attribution, path: Path) -> int:
    """Write the page of attributions; return its size in bytes."""
    page = AnalysisPage(
        f"Attribution to the tokens of the input, by {result.method}",
        recording_caption(result.metadata),
        (
            "Orange tokens raise the score, blue ones lower it; the largest attribution of a"
            f" text has the full colour. Attribution of token p: {result.formula}. {result.paper}.",
        ),
        result.notes,
        tuple(_page_text(result, number) for number in range(len(result.rows))),
    )
    return page.write(path)


def _page_text(result: Attribution, number: int) -> PageText:
    row = result.rows[number]
    scale = scale_of(row)
    tokens = []
    for one in row.tokens:
        share = float(scale.position(np.array(one.score)))
        if not scale.high and share == share:
            share = 0.5  # all are zero
        has_words = row.tokens and not one.token.text.isdecimal()
        text = visible(one.token.text) if has_words else f"{one.token.text} "
        cell = (text, color_class(scale, share), number_text(one.score))
        tokens.append((cell, one.position, token_text(one.token.text)))
    title = title_of(result, number).rstrip(":")
    return PageText(title, tuple(tokens), sum_sentence(result, number))


VIEW: View[Attribution] = View(
    attribution_lines,
    filed_document("attribute"),
    write_attribution_page,
    lambda result, dpi: draw_attribution(result),
    COLUMNS,
)
