"""The logit lens as text: a heat map of the predicted tokens, and the last position in figures."""

from __future__ import annotations

import math
import os

import numpy as np
from rich.text import Text

from hookscope.files.words import number_text, percent_text, plural, token_text
from hookscope.results.lens import Lens, LensCell, LensRow
from hookscope.specs.patterns import layer_text
from hookscope.views.images.colors import SEQUENTIAL, ColorScale
from hookscope.views.images.figures.drawing import Drawing, recording_caption
from hookscope.views.layer_map import (
    LEVELS,
    HeatCell,
    HeatMap,
    LayerMap,
    LayerMapCell,
    LayerMapLabels,
    LayerMapPage,
    LayerMapPanel,
    LayerMapRow,
    draw_layer_map,
    heat_map_rows,
    write_layer_map_page,
)
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)
from hookscope.views.view import View, filed_document

MAX_TEXTS = 4  # of a batch, on a terminal; a pipe gets all
TOKEN_WIDTH = 9  # cells of a column of the heat map
SHOWN = 3  # candidates in the table of the last position
COLUMNS = (  # of the table of all positions
    *(Column("layer"), Column("text", right=True), Column("position", "at", right=True)),
    *(Column("after"), Column("predicted"), Column("probability", "prob.", right=True)),
    *(Column("target"), Column("rank", right=True)),
    *(Column("target_probability", "target", right=True), Column("kl", right=True)),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in ("target_probability", "probability", "position")),
    *(("drop", title) for title in ("text", "after", "probability", "kl", "target")),
)

MOST_POSITIONS = 64  # that are drawn, the last ones


def lens_lines(result: Lens, options: TextOptions) -> list[Text]:
    """Return the whole summary: in a pipe one line for each cell."""
    notes = [line for note in result.notes for line in sentence(note, options, NOTICE_STYLE)]
    if options.lists_rows:
        return join_blocks(_cell_table(result, options), notes, options=options)
    norm = f"after {result.norm} and" if result.norm else "by"
    title = f"What {plural(len(result.layers), 'layer')} predict {norm} {result.head}"
    blocks = [sentence(f"{title}: the most probable next token at each position.", options, "bold")]
    for number, row in enumerate(result.rows[:MAX_TEXTS]):
        if not options.html:
            blocks.append(heat_map_lines(result, number, options))
        blocks.append(_position_lines(result, number, row, options))
    left = len(result.rows) - MAX_TEXTS
    if left > 0:
        blocks.append(sentence(f"... and {plural(left, 'more text')}.", options, "dim"))
    return join_blocks(*blocks, notes, options=options)


def heat_map_lines(result: Lens, number: int, options: TextOptions) -> list[Text]:
    """Return one line for each layer: the most probable token, the brighter the more probable."""
    positions = result.real_positions(number)
    tokens = result.rows[number].tokens
    titles = [
        token_text(tokens[position].text, options.ascii) if tokens else str(position)
        for position in positions
    ]
    rows = [[_heat_cell(cell, options) for cell in cells] for _, cells in result.by_layer(number)]
    heat = HeatMap("after", result.layers, titles, rows)
    lines, hidden = heat_map_rows(heat, TOKEN_WIDTH, options)
    if hidden:
        text = (
            f"The first {plural(hidden, 'position')} are in the file, in a picture and in a pipe."
        )
        lines += sentence(text, options, "dim")
    return lines


def _heat_cell(cell: LensCell, options: TextOptions) -> HeatCell:
    best = cell.top[0]
    color = None
    if math.isfinite(best.probability):
        red, green, blue = SEQUENTIAL[round(255 * min(max(best.probability, 0.0), 1.0))]
        color = (int(red), int(green), int(blue))
    return HeatCell(token_text(best.token.text, options.ascii), color)


def _position_lines(result: Lens, number: int, row: LensRow, options: TextOptions) -> list[Text]:
    """The table of the last position of a text."""
    real = result.real_positions(number)
    if not real:
        return sentence(f"Text {number} is only padding.", options, "dim")
    last = real[-1]
    after = f" ({token_text(row.tokens[last].text, options.ascii)!r})" if row.tokens else ""
    text = f" of text {number}" if len(result.rows) > 1 else ""
    cells = [cells[-1] for _, cells in result.by_layer(number)]
    target = token_text(cells[-1].target.text, options.ascii)
    title = f"After the last position{text}, {last}{after}; the target is {target!r}:"
    columns = (
        Column("layer"),
        Column("most probable"),
        Column("rank", right=True),
        Column("probability", "prob.", right=True),
        Column("KL", right=True),
    )
    squeeze: tuple[Squeeze, ...] = (("shorten", "probability"), ("shorten", "most probable"))
    rows = tuple(Row((Cell(layer_text(cell.layer)), *_figures(cell, options))) for cell in cells)
    table = table_lines(Table(columns, rows, squeeze, note=""), options)
    meaning = "rank and probability: of the target; KL: divergence from the model's output, nats."
    return [*sentence(title, options), *table, *sentence(meaning, options, "dim")]


def _figures(cell: LensCell, options: TextOptions) -> tuple[Cell, ...]:
    best = [
        f"{token_text(candidate.token.text, options.ascii)} {percent_text(candidate.probability)}"
        for candidate in cell.top[:SHOWN]
    ]
    return (
        Cell(", ".join(best), short=best[0]),
        count_cell(cell.rank),
        number_cell(cell.probability),
        number_cell(cell.kl),
    )


def _cell_table(result: Lens, options: TextOptions) -> list[Text]:
    rows = tuple(_cell_row(result, cell, options) for cell in result.cells)
    return result_table(Table(COLUMNS, rows, SQUEEZE, note=""), options)


def _cell_row(result: Lens, cell: LensCell, options: TextOptions) -> Row:
    tokens = result.rows[cell.row].tokens
    best = cell.top[0]
    return Row(
        (
            Cell(layer_text(cell.layer)),
            *(count_cell(cell.row), count_cell(cell.position)),
            Cell(token_text(tokens[cell.position].text, options.ascii) if tokens else ""),
            *(Cell(token_text(best.token.text, options.ascii)), number_cell(best.probability)),
            *(Cell(token_text(cell.target.text, options.ascii)), count_cell(cell.rank)),
            *(number_cell(cell.probability), number_cell(cell.kl)),
        )
    )


def draw_lens(result: Lens) -> Drawing:
    """Draw one panel for each text: layers from bottom to top, positions to the right.

    The colour of a cell is the probability of its most probable token, which is written into it.
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


def write_lens_page(result: Lens, path: str | os.PathLike[str]) -> int:
    """Write the page of a lens; return its size in bytes."""
    page = LayerMapPage(
        title="Most probable next token at each layer",
        caption=recording_caption(result.metadata),
        meaning=(
            f"Each layer is read with {_reading(result)}. The colour is the probability of the"
            " token. Point at a cell for more tokens.",
        ),
        notes=result.notes,
        scale=tuple(f"{level / LEVELS:.0%}" for level in range(LEVELS + 1)),
        color="p",
        corner="after",
        maps=tuple(_map(result, number, row) for number, row in enumerate(result.rows)),
    )
    return write_layer_map_page(page, path)


def _reading(result: Lens) -> str:
    return f"{result.norm} and {result.head}" if result.norm else result.head


def _map(result: Lens, number: int, row: LensRow) -> LayerMap:
    positions = result.real_positions(number)
    tokens = [row.tokens[at].text if row.tokens else str(at) for at in positions]
    title = "".join(tokens).strip() if row.tokens else f"Input {number}"
    rows = [
        LayerMapRow(layer_text(layer), tuple(map(_cell, cells)))
        for layer, cells in result.by_layer(number)
    ]
    return LayerMap(title, tuple(map(token_text, tokens)), tuple(reversed(rows)))


def _cell(cell: LensCell) -> LayerMapCell:
    best = cell.top[0]
    share = best.probability
    color = f"p{round(share * LEVELS)}" if math.isfinite(share) else "pnan"
    lines = [f"{token_text(one.token.text)} {one.probability:.1%}" for one in cell.top]
    target = f"{token_text(cell.target.text)}: rank {cell.rank}, {cell.probability:.2%}"
    lines += [f"target {target}", f"KL {number_text(cell.kl)} nats"]
    return LayerMapCell(token_text(best.token.text), color, "\n".join(lines))


VIEW: View[Lens] = View(
    lens_lines,
    filed_document("lens"),
    write_lens_page,
    lambda result, dpi: draw_lens(result),
    COLUMNS,
)
