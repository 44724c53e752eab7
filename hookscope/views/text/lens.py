"""The logit lens as text: a heat map of the predicted tokens, and the last position in figures."""

from __future__ import annotations

import math

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.style import Style
from rich.text import Text

from hookscope.results.lens import Lens, LensCell, LensRow
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.text.formats import layer_text, plural, token_text, visible
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell
from hookscope.views.text.text_table import (
    Cell,
    Column,
    Row,
    Squeeze,
    Table,
    TextOptions,
    join_blocks,
    sentence,
    table_lines,
)

MAX_TEXTS = 4  # of a batch, on a terminal; a pipe gets all
TOKEN_WIDTH = 9  # cells of a column of the heat map
SHOWN = 3  # candidates in the table of the last position
_NAME_SHARE = 0.35  # of the width, for the names of layers


def lens_lines(result: Lens, options: TextOptions) -> list[Text]:
    """Return the whole summary: in a pipe one line for each cell.

    Args:
        result: what the layers predict.
        options: where the lines are printed.
    """
    notes = [line for note in result.notes for line in sentence(note, options, NOTICE_STYLE)]
    if options.width is None:
        return [*_pipe_table(result, options), *notes]
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
    """Return one line for each layer: the most probable token, the brighter the more probable.

    Args:
        result: what the layers predict.
        number: of the text in the batch.
        options: where the lines are printed; the last positions that fit are shown.
    """
    assert options.width is not None
    names = [visible(layer_text(layer), options.ascii) for layer in result.layers]
    room = min(max(map(cell_len, names), default=0), int(options.width * _NAME_SHARE))
    fitting = max(1, (options.width - room) // (TOKEN_WIDTH + 1))
    positions = list(result.real_positions(number))
    shown = positions[-fitting:]
    lines = [_header(result.rows[number], shown, room, options)]
    for name, (_, cells) in zip(names, result.by_layer(number), strict=True):
        line = Text(_padded(name, room))
        for cell in cells[len(positions) - len(shown) :]:
            best = cell.top[0]
            text = _padded(token_text(best.token.text, options.ascii), TOKEN_WIDTH)
            line.append(" ").append(text, _shade(best.probability))
        lines.append(line)
    if len(shown) < len(positions):
        hidden = len(positions) - len(shown)
        text = (
            f"The first {plural(hidden, 'position')} are in the file, in a picture and in a pipe."
        )
        lines += sentence(text, options, "dim")
    return lines


def _header(row: LensRow, positions: list[int], room: int, options: TextOptions) -> Text:
    line = Text(_padded("after", room), "bold")
    for position in positions:
        text = token_text(row.tokens[position].text, options.ascii) if row.tokens else str(position)
        line.append(" ").append(_padded(text, TOKEN_WIDTH))
    return line


def _padded(text: str, width: int) -> str:
    """The beginning of a text in so many cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, width - 1)}~"


def _shade(probability: float) -> Style:
    if not math.isfinite(probability):
        return Style(color="red")
    back = SEQUENTIAL[round(255 * min(max(probability, 0.0), 1.0))]
    ink = "black" if probability > 0.5 else "white"
    return Style(color=ink, bgcolor=Color.from_rgb(*map(int, back)))


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
    meaning = "rank and probability: of the target; KL: divergence of the model's prediction, nats."
    return [*sentence(title, options), *table, *sentence(meaning, options, "dim")]


def _figures(cell: LensCell, options: TextOptions) -> tuple[Cell, ...]:
    best = [
        f"{token_text(candidate.token.text, options.ascii)} {candidate.probability:.0%}"
        for candidate in cell.top[:SHOWN]
    ]
    return (
        Cell(", ".join(best), short=best[0]),
        count_cell(cell.rank),
        number_cell(cell.probability),
        number_cell(cell.kl),
    )


def _pipe_table(result: Lens, options: TextOptions) -> list[Text]:
    columns = (
        *(Column("layer"), Column("text", right=True), Column("position", right=True)),
        *(Column("after"), Column("predicted"), Column("probability", right=True)),
        *(Column("target"), Column("rank", right=True), Column("target_probability", right=True)),
        Column("kl", right=True),
    )
    rows = tuple(_pipe_row(result, cell, options) for cell in result.cells)
    return table_lines(Table(columns, rows, note=""), options)


def _pipe_row(result: Lens, cell: LensCell, options: TextOptions) -> Row:
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
