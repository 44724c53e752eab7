"""The logit lens as a page: a table of layers by positions for each text."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hookscope.files.atomic_files import write_text
from hookscope.results.lens import Lens, LensCell, LensRow
from hookscope.views.html.page_template import fill_template
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.text.formats import layer_text, number_text, token_text

_STYLES = ("page.css", "lens_page.css")
_SCRIPTS = ("theme.js",)
_LEVELS = 10  # of probability, in lens_page.css


@dataclass(frozen=True)
class LensPageCell:
    """One cell: its token, the level of its colour, and what is shown while it is pointed at."""

    token: str
    level: int | str
    details: str


@dataclass(frozen=True)
class LensPageRow:
    """One layer of a text."""

    layer: str
    cells: tuple[LensPageCell, ...]


@dataclass(frozen=True)
class LensPageText:
    """One text of the batch, with its tokens and its layers from the last to the first."""

    title: str
    tokens: tuple[str, ...]
    rows: tuple[LensPageRow, ...]


@dataclass(frozen=True)
class LensPage:
    """What the template shows."""

    title: str
    caption: str
    meaning: str
    notes: tuple[str, ...]
    scale: tuple[str, ...]
    texts: tuple[LensPageText, ...]


def write_lens_page(result: Lens, path: str | os.PathLike[str]) -> int:
    """Write the page of a lens; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    page = LensPage(
        title="Most probable next token at each layer",
        caption=recording_caption(result.metadata),
        meaning=f"Each layer is read with {_reading(result)}. The colour is the probability of the"
        " token. Point at a cell for more tokens.",
        notes=result.notes,
        scale=tuple(f"{level / _LEVELS:.0%}" for level in range(_LEVELS + 1)),
        texts=tuple(_text(result, number, row) for number, row in enumerate(result.rows)),
    )
    return write_text(path, fill_template("lens_page.html", _STYLES, _SCRIPTS, page))


def _reading(result: Lens) -> str:
    return f"{result.norm} and {result.head}" if result.norm else result.head


def _text(result: Lens, number: int, row: LensRow) -> LensPageText:
    positions = result.real_positions(number)
    tokens = [row.tokens[at].text if row.tokens else str(at) for at in positions]
    title = "".join(tokens).strip() if row.tokens else f"Input {number}"
    rows = [
        LensPageRow(layer_text(layer), tuple(map(_cell, cells)))
        for layer, cells in result.by_layer(number)
    ]
    return LensPageText(title, tuple(map(token_text, tokens)), tuple(reversed(rows)))


def _cell(cell: LensCell) -> LensPageCell:
    best = cell.top[0]
    share = best.probability
    level = round(share * _LEVELS) if math.isfinite(share) else "nan"
    lines = [f"{token_text(one.token.text)} {one.probability:.1%}" for one in cell.top]
    target = f"{token_text(cell.target.text)}: rank {cell.rank}, {cell.probability:.2%}"
    lines += [f"target {target}", f"KL {number_text(cell.kl)} nats"]
    return LensPageCell(token_text(best.token.text), level, "\n".join(lines))
