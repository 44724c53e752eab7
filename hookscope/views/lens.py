"""The logit lens as text: a heat map of the predicted tokens, and the last position in figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.text import Text

from hookscope.files.words import number_text, percent_text, plural, token_text
from hookscope.results.lens import Lens, LensCell, LensRow
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figures.drawing import Drawing, recording_caption
from hookscope.views.layer_map import LayerMap, LayerMaps
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

MAX_TEXTS = 4  # of a batch, on a terminal; a pipe gets all
TOKEN_WIDTH = 9  # cells of a column of the heat map
SHOWN = 3  # candidates in the table of the last position
COLUMNS = (  # of the table of all positions
    *(Column("layer"), Column("text", right=True), Column("position", "at", right=True)),
    *(Column("after"), Column("predicted"), Column("probability", "prob.", right=True)),
    *(Column("target"), Column("rank", right=True)),
    *(Column("target_probability", "target", right=True), Column("kl", right=True)),
)
SQUEEZE = (
    *shorten("target_probability", "probability", "position"),
    *drop("text", "after", "probability", "kl", "target"),
)

MOST_POSITIONS = 64  # that are drawn, the last ones


def lens_lines(result: Lens, options: TextOptions) -> list[Text]:
    """Return the whole summary: in a pipe one line for each cell."""
    notes = styled_lines(((note, NOTICE_STYLE) for note in result.notes), options)
    if options.lists_rows:
        cells = tuple(_cell_row(result, cell, options) for cell in result.cells)
        table = result_table(Table(COLUMNS, cells, SQUEEZE, note=""), options)
        return join_blocks(table, notes, options=options)
    norm = f"after {result.norm} and" if result.norm else "by"
    title = f"What {plural(len(result.layers), 'layer')} predict {norm} {result.head}"
    blocks = [sentence(f"{title}: the most probable next token at each position.", options, "bold")]
    for number, row in enumerate(result.rows[:MAX_TEXTS]):
        if not options.is_page:
            maps = lens_maps(result, [text_map(result, number, ascii=options.ascii)])
            blocks.append(maps.lines(TOKEN_WIDTH, options))
        blocks.append(_position_lines(result, number, row, options))
    left = len(result.rows) - MAX_TEXTS
    if left > 0:
        blocks.append(sentence(f"... and {plural(left, 'more text')}.", options, "dim"))
    return join_blocks(*blocks, notes, options=options)


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
    squeeze = shorten("probability", "most probable")
    rows = tuple(Row.of(Cell(layer_text(cell.layer)), *_figures(cell, options)) for cell in cells)
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


def _cell_row(result: Lens, cell: LensCell, options: TextOptions) -> Row:
    tokens = result.rows[cell.row].tokens
    best = cell.top[0]
    return Row.of(
        Cell(layer_text(cell.layer)),
        *(count_cell(cell.row), count_cell(cell.position)),
        Cell(token_text(tokens[cell.position].text, options.ascii) if tokens else ""),
        *(Cell(token_text(best.token.text, options.ascii)), number_cell(best.probability)),
        *(Cell(token_text(cell.target.text, options.ascii)), count_cell(cell.rank)),
        *(number_cell(cell.probability), number_cell(cell.kl)),
    )


def lens_maps(result: Lens, maps: Sequence[LayerMap]) -> LayerMaps:
    """Return maps of a lens; a colour is the probability of the token that is written into it."""
    title = "Most probable next token at each layer"
    about, scale = recording_caption(result.metadata), ColorScale(0.0, 1.0)
    return LayerMaps(title, about, "probability", "after", "position", "after", scale, maps)


def text_map(
    result: Lens, number: int, most: int | None = None, *, ascii: bool = False
) -> LayerMap:
    """Return the map of a text, or of its last ``most`` positions."""
    row, shown = result.rows[number], slice(-most if most else None, None)
    positions = result.real_positions(number)[shown]
    tokens = [row.tokens[at].text if row.tokens else str(at) for at in positions]
    rows = [cells[shown] for _, cells in result.by_layer(number)]
    return LayerMap(
        "".join(tokens).strip() if row.tokens else f"Input {number}",
        list(map(layer_text, result.layers)),
        [token_text(text, ascii) for text in tokens],
        np.array([[cell.top[0].probability for cell in cells] for cells in rows], np.float64),
        [[token_text(cell.top[0].token.text, ascii) for cell in cells] for cells in rows],
        [list(map(_details, cells)) for cells in rows],
    )


def _details(cell: LensCell) -> str:
    lines = [f"{token_text(one.token.text)} {one.probability:.1%}" for one in cell.top]
    target = f"{token_text(cell.target.text)}: rank {cell.rank}, {cell.probability:.2%}"
    return "\n".join([*lines, f"target {target}", f"KL {number_text(cell.kl)} nats"])


def draw_lens(result: Lens) -> Drawing:
    """Draw one panel for each text."""
    numbers = [n for n in range(len(result.rows)) if result.real_positions(n)]
    return lens_maps(result, [text_map(result, n, MOST_POSITIONS) for n in numbers]).draw("lens")


def write_lens_page(result: Lens, path: Path) -> int:
    """Write the page of a lens; return its size in bytes."""
    maps = lens_maps(result, [text_map(result, number) for number in range(len(result.rows))])
    read = f"{result.norm} and {result.head}" if result.norm else result.head
    meaning = (
        f"Each layer is read with {read}. The colour is the probability of the token. Point at a"
        " cell for more tokens."
    )
    return maps.page((meaning,), result.notes, "{:.0%}".format).write(path)


VIEW: View[Lens] = View(
    lens_lines,
    filed_document("lens"),
    write_lens_page,
    lambda result, dpi: draw_lens(result),
    COLUMNS,
)
