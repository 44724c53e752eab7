"""Ranked inputs of units as text and pictures; in texts the token of the value is in brackets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.file_analysis.top_inputs import RankedInput, RankedUnit, TopInputs
from hookscope.file_analysis.unit_activations import QUANTILES
from hookscope.files.words import DIGITS, count_text, number_text, plural, shape_text
from hookscope.stores.features.manifest import SIDES, VisiblePart
from hookscope.views.display import View, filed_document
from hookscope.views.images.figures.canvas import escape_text
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_context import marked_text
from hookscope.views.text.text_table import GAP as COLUMN_GAP
from hookscope.views.text.text_table import (
    NAME_SHARE,
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

if TYPE_CHECKING:
    from hookscope.views.images.cam_sheet import CamSheet, Label, Pixels, Tile

_SHOWN = 3  # inputs of each end on a terminal; a pipe gets all
_LEAST_TEXT = 24  # cells for a text beside the columns

SIDE = 96  # of a picture, in pixels at 150 dots per inch; as are the lengths below
GAP, LINE, FONT = 10, 17, 12
NAMES = 60  # room for the words "most" and "least"
MOST_PICTURES = 2000
_PAPER = 235  # grey of a picture that cannot be shown
_DARK, _LIGHT = (0, 0, 0), (255, 225, 0)  # of a frame, outside and inside: seen on any image
Box = tuple[float, float, float, float]  # left, top, right, bottom
CELLS = 100  # of a text
LETTER = 0.58  # width of one, as a share of the size of the font; more than most have
# Lengths in pixels at 150 dots per inch; the last three are columns beside the text.
END, VALUE, NAME = 60, 80, 200
MOST_PIXELS = 65_500  # of a side of a JPEG file
PAGE = 1.4  # height of a sheet of several units, as a share of its width: that of a sheet of paper


def top_lines(result: TopInputs, options: TextOptions) -> list[Text]:
    """Return the ranked inputs of each unit; in a pipe one line for each."""
    notes = styled_lines(((note, NOTICE_STYLE) for note in result.notes), options)
    cut = options.is_page or not options.lists_rows
    units = _unit_table(result, options)
    inputs = _input_table(result, options, _SHOWN if cut else None)
    if cut and any(len(unit.most) > _SHOWN for unit in result.units):
        text = f"The first {_SHOWN} of each end are shown; a pipe and a file (-o) have all."
        inputs += sentence(text, options, "dim")
    title = sentence(top_title(result), options, "bold")
    return join_blocks(title, units, inputs, notes, options=options)


def top_title(result: TopInputs) -> str:
    """Return a sentence with the layer, the folder and what an activation is."""
    how = f", {result.by} over positions" if result.by else ""
    return (
        f"{result.key} ({shape_text(result.shape)}) of {result.model}:"
        f" {plural(len(result.units), result.what)}{how}, {count_text(result.rows)} inputs."
    )


def quantile_text(unit: RankedUnit) -> str:
    """Return the quantiles of a unit as text."""
    pairs = zip(QUANTILES, unit.quantiles, strict=True)
    return ", ".join(f"{share:.0%} {number_text(value, 3)}" for share, value in pairs)


def input_names(ranked: RankedInput) -> list[str]:
    """Return the label of an input, if it has one, and the last part of its path."""
    label = [] if ranked.label is None else [f"[{ranked.label}]"]
    return [*label, os.path.basename(ranked.name)]


def _unit_table(result: TopInputs, options: TextOptions) -> list[Text]:
    titles = [f"{share:.0%}" for share in QUANTILES]
    columns = (
        Column(result.what),
        *(Column(title, right=True) for title in ("least", *titles, "most", "mean")),
    )
    squeeze = (
        *shorten(*(column.title for column in columns[1:])),
        *drop("25%", "75%", "1%", "99%", "mean"),
    )
    rows = tuple(
        Row.of(
            Cell(str(unit.unit)),
            number_cell(unit.least[0].value if unit.least else None),
            *map(number_cell, unit.quantiles),
            number_cell(unit.most[0].value if unit.most else None),
            number_cell(unit.mean),
        )
        for unit in result.units
    )
    return table_lines(Table(columns, rows, squeeze, note=""), options)


def _input_table(result: TopInputs, options: TextOptions, shown: int | None) -> list[Text]:
    columns = (
        *(Column("input"), Column(result.what, right=True), Column("end")),
        *(Column("activation", right=True), Column("position"), Column("label")),
        Column("row", right=True),
    )
    squeeze = (*shorten("activation"), *drop("row", "position", "label"))
    entries = [
        (unit, end, ranked)
        for unit in result.units
        for end, inputs in (("most", unit.most), ("least", unit.least))
        for ranked in inputs[:shown]
    ]
    rows = tuple(
        Row.of(
            Cell(ranked.name),
            count_cell(unit.unit),
            Cell(end),
            number_cell(ranked.value),
            Cell("" if ranked.position is None else ",".join(map(str, ranked.position))),
            Cell("" if ranked.label is None else str(ranked.label)),
            count_cell(ranked.row),
        )
        for unit, end, ranked in entries
    )
    table = Table(columns, rows, squeeze, note="")
    if result.texts:
        table = _with_texts(table, [ranked for _, _, ranked in entries], options)
    return result_table(table, options)


def _with_texts(table: Table, inputs: Sequence[RankedInput], options: TextOptions) -> Table:
    """The table with the text of each row beside the columns, or below them if there is no room."""
    hidden = {"row", *(["position"] if all(ranked.token for ranked in inputs) else [])}
    unseen = [i for i, column in enumerate(table.columns) if column.title in hidden]
    rows = [list(row.cells) for row in table.rows]
    for cells in rows:
        for i in unseen:
            cells[i] = replace(cells[i], text="", full=cells[i].text)
    table = replace(table, rows=tuple(Row(tuple(cells)) for cells in rows), note="text")
    room = None
    if options.width is not None:
        room = _free_cells(table, options.width, options)
        room = room if room >= _LEAST_TEXT else options.width - len(COLUMN_GAP)
    shown = partial(visible, ascii=options.ascii)
    notes = (Cell(marked_text(ranked, room, shown)) for ranked in inputs)
    return replace(
        table,
        rows=tuple(replace(row, note=note) for row, note in zip(table.rows, notes, strict=True)),
    )


def _free_cells(table: Table, width: int, options: TextOptions) -> int:
    """Cells beside the columns of a table, whose names have their usual share of the width."""
    taken = 0
    for i, column in enumerate(table.columns):
        cells = [row.cells[i] for row in table.rows]
        texts = [
            number_text(cell.value, options.precision or DIGITS) if cell.rounded else cell.text
            for cell in cells
        ]
        widest = max(cell_len(visible(text, options.ascii)) for text in (column.title, *texts))
        if i == 0:
            widest = min(widest, max(int(width * NAME_SHARE), len(column.title)))
        taken += widest + len(COLUMN_GAP) if any(texts) else 0
    return width - taken


def draw_top_inputs(result: TopInputs, dpi: int) -> Drawing:
    """Draw the sheet of pictures, or of texts."""
    from hookscope.views.images.cam_sheet import draw_cam

    sheet = top_text_sheet(result, dpi, escape_text) if result.texts else top_sheet(result, dpi)
    return replace(draw_cam(sheet, top_title(result)), kind="top")


@dataclass(frozen=True)
class _Square:
    """A picture, and the edges of the image in it; None if the image cannot be shown."""

    pixels: Pixels
    box: Box | None = None


@dataclass
class _Pictures:
    """The images of inputs, read once each, and why some cannot be shown."""

    result: TopInputs
    side: int
    missing: dict[str, str] = field(default_factory=dict)
    _read: dict[str, _Square] = field(default_factory=dict)

    def of(self, ranked: RankedInput) -> Pixels:
        """The image, fitted into a square, with a frame around the cell of its largest value."""
        if ranked.name not in self._read:
            self._read[ranked.name] = self._square(ranked)
        square = self._read[ranked.name]
        grid, part = self.result.grid, self.result.visible_part
        if not (square.box and grid and part and ranked.position):
            return square.pixels
        cell = cell_box(square.box, part, grid, ranked.position)
        return _framed(square.pixels, cell, max(self.side // SIDE, 1))

    def _square(self, ranked: RankedInput) -> _Square:
        import numpy as np

        from hookscope.views.images.input_pictures import small_image

        square = np.full((self.side, self.side, 3), _PAPER, np.uint8)
        pixels = small_image(ranked.name, ranked.sha256, self.side, self.result.places)
        if isinstance(pixels, str):
            self.missing[ranked.name] = pixels
            return _Square(square)
        height, width = pixels.shape[:2]
        top, left = (self.side - height) // 2, (self.side - width) // 2
        square[top : top + height, left : left + width] = pixels
        return _Square(square, (left, top, left + width, top + height))


def cell_box(
    image: Box, part: VisiblePart, grid: tuple[int, int], position: tuple[int, ...]
) -> Box:
    """Return the edges of a grid cell on an image: left, top, right, bottom.

    >>> part = {"of": "shorter side", "width": 1.0, "height": 1.0}
    >>> cell_box((0, 0, 200, 100), part, (2, 4), (1, 0))
    (50.0, 50.0, 75.0, 100.0)
    """
    left, top, right, bottom = image
    sides = right - left, bottom - top
    shorter = min(sides)
    width, height = (
        share * (side if part["of"] == SIDES else shorter)
        for share, side in zip((part["width"], part["height"]), sides, strict=True)
    )
    left, top = (left + right - width) / 2, (top + bottom - height) / 2
    row, column = position
    down, across = height / grid[0], width / grid[1]
    return (
        *(left + across * column, top + down * row),
        *(left + across * (column + 1), top + down * (row + 1)),
    )


def _framed(pixels: Pixels, box: Box, thickness: int) -> Pixels:
    """A copy with a frame on the edges of a box, dark outside and light inside."""
    import numpy as np
    from PIL import Image, ImageDraw

    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = map(round, box)
    for color, outside in ((_DARK, thickness), (_LIGHT, 0)):
        edges = (left - outside, top - outside, right - 1 + outside, bottom - 1 + outside)
        # A cell may have no pixel of its own.
        corner = max(edges[2], edges[0]), max(edges[3], edges[1])
        draw.rectangle((*edges[:2], *corner), outline=color, width=thickness)
    return np.asarray(image)


def top_sheet(result: TopInputs, dpi: int) -> CamSheet:
    """Return the sheet: for each unit its quantiles, the images of both ends, and their values."""
    inputs = [one for unit in result.units for one in (*unit.most, *unit.least)]
    if not any(one.sha256 for one in inputs):
        raise RequestError(
            f"The inputs of {result.folder} are items of a Dataset, which have no files to show.",
            "Write the ranking as JSON: -o top.json",
        )
    if len(inputs) > MOST_PICTURES:
        raise RequestError(
            f"The sheet would have {len(inputs)} pictures, and the limit is {MOST_PICTURES}.",
            "Name fewer --units, or a smaller --count.",
        )
    return _lay_out(result, dpi)


@dataclass(frozen=True)
class _Block:
    """What the sheet shows of a unit, in pixels from the upper left corner of its place."""

    height: int
    tiles: tuple[Tile, ...]
    labels: tuple[Label, ...]


class _Lengths:
    """The lengths of a sheet at its resolution, and the texts that fit into them."""

    def __init__(self, dpi: int) -> None:
        from hookscope.views.images.cam_sheet import BASE_DPI

        self.dpi = dpi
        self._times = dpi / BASE_DPI
        self.gap, self.line, self.font = map(self.pixels, (GAP, LINE, FONT))

    def pixels(self, length: float) -> int:
        return max(round(length * self._times), 1)

    def labels(self, text: str, x: int, y: int, width: int) -> list[Label]:
        """A text in as many lines as it needs."""
        from hookscope.views.images.cam_sheet import Label, wrapped

        lines = enumerate(wrapped(text, width, self.font))
        return [Label(x, y + n * self.line, line, width) for n, line in lines]

    def sheet(
        self, title: str, width: int, blocks: Sequence[_Block], notes: Sequence[str]
    ) -> CamSheet:
        """Return blocks of one width in as few columns as make a page, between the texts."""
        from hookscope.views.images.cam_sheet import CamSheet

        step = width + 2 * self.gap
        height = sum(block.height for block in blocks)
        columns = math.ceil(math.sqrt(height / (step * PAGE)))
        columns = min(columns, len(blocks))
        whole = columns * step - 2 * self.gap
        labels = self.labels(title, self.gap, self.gap, whole)
        tiles: list[Tile] = []
        y = 2 * self.gap + len(labels) * self.line
        for first in range(0, len(blocks), columns):
            row = blocks[first : first + columns]
            for n, block in enumerate(row):
                x = self.gap + n * step
                labels += [replace(one, x=x + one.x, y=y + one.y) for one in block.labels]
                tiles += [replace(one, x=x + one.x, y=y + one.y) for one in block.tiles]
            y += max(block.height for block in row) + 2 * self.gap
        for note in notes:
            lines = self.labels(note, self.gap, y, whole)
            labels += lines
            y += len(lines) * self.line
        if y + self.gap > MOST_PIXELS:
            raise RequestError(
                f"The sheet would be {y + self.gap} pixels high, and the limit is {MOST_PIXELS}.",
                "Name fewer --units, or a smaller --count or --dpi.",
            )
        size = (whole + 2 * self.gap, y + self.gap)
        return CamSheet(size, tuple(tiles), tuple(labels), self.font, self.dpi)


def _lay_out(result: TopInputs, dpi: int) -> CamSheet:
    lengths = _Lengths(dpi)
    side, names = map(lengths.pixels, (SIDE, NAMES))
    most = max(max(len(unit.most), len(unit.least)) for unit in result.units)
    width = names + max(most, 3) * (side + lengths.gap)
    pictures = _Pictures(result, side)
    blocks = [_picture_block(result.what, unit, pictures, width, lengths) for unit in result.units]
    return lengths.sheet(top_title(result), width, blocks, [*_missing_lines(pictures.missing)])


def _picture_block(
    what: str, unit: RankedUnit, pictures: _Pictures, width: int, lengths: _Lengths
) -> _Block:
    """The quantiles of a unit, and the pictures of each end, each above its value and its names."""
    from hookscope.views.images.cam_sheet import Tile

    tiles: list[Tile] = []
    labels = lengths.labels(_unit_heading(what, unit), 0, 0, width)
    y = len(labels) * lengths.line + lengths.gap // 2
    for end, inputs in (("most", unit.most), ("least", unit.least)):
        labels += lengths.labels(end, 0, y, lengths.pixels(NAMES))
        below = y
        for n, ranked in enumerate(inputs):
            x = lengths.pixels(NAMES) + n * (pictures.side + lengths.gap)
            tiles.append(Tile(x, y, pictures.of(ranked)))
            end_of_text = y + pictures.side + lengths.gap // 3
            for text in (number_text(ranked.value, 3), *input_names(ranked)):
                lines = lengths.labels(text, x, end_of_text, pictures.side)
                labels += lines
                end_of_text += len(lines) * lengths.line
            below = max(below, end_of_text)
        y = below + lengths.gap
    return _Block(y, tuple(tiles), tuple(labels))


def _unit_heading(what: str, unit: RankedUnit) -> str:
    return f"{what} {unit.unit}: quantiles {quantile_text(unit)}"


def _missing_lines(missing: dict[str, str]) -> Iterator[str]:
    for reason in dict.fromkeys(missing.values()):
        names = [os.path.basename(name) for name, why in missing.items() if why == reason]
        verb = "is" if len(names) == 1 else "are"
        more = ", ..." if len(names) > 3 else ""
        yield f"{plural(len(names), 'image')} {verb} {reason}: {', '.join(names[:3])}{more}."


def top_text_sheet(result: TopInputs, dpi: int, shown: Callable[[str], str]) -> CamSheet:
    """Return the sheet: for each unit its quantiles, and a line for each text of both ends."""
    from hookscope.views.images.cam_sheet import Label

    lengths = _Lengths(dpi)
    end, value, name = map(lengths.pixels, (END, VALUE, NAME))
    text = round(CELLS * lengths.font * LETTER)
    width = end + value + text + lengths.gap + name
    blocks = []
    for unit in result.units:
        labels = lengths.labels(_unit_heading(result.what, unit), 0, 0, width)
        y = len(labels) * lengths.line
        for title, inputs in (("most", unit.most), ("least", unit.least)):
            labels += lengths.labels(title, 0, y, end)
            for ranked in inputs:
                labels.append(Label(end, y, number_text(ranked.value), value))
                labels.append(Label(end + value, y, _content(ranked, shown), text))
                names = " ".join(input_names(ranked))
                lines = lengths.labels(names, width - name, y, name)
                labels += lines
                y += len(lines) * lengths.line
            y += lengths.line // 2
        blocks.append(_Block(y, (), tuple(labels)))
    return lengths.sheet(top_title(result), width, blocks, result.notes)


def _content(ranked: RankedInput, shown: Callable[[str], str]) -> str:
    """The text, after the number of the token if it cannot be marked."""
    text = marked_text(ranked, CELLS, shown)
    if ranked.token is None and ranked.position is not None:
        return f"position {ranked.position[0]}  {text}"
    return text


VIEW: View[TopInputs] = View(top_lines, filed_document("top"), picture=draw_top_inputs)
