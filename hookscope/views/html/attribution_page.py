"""Attributions as a page: the coloured text, and a table of its tokens."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from hookscope.escapes import visible
from hookscope.files.atomic_files import write_text
from hookscope.files.words import number_text, token_text
from hookscope.results.attribution import Attribution
from hookscope.views.html.page_template import fill_template
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.text.attribution import scale_of, sum_sentence, title_of

_STYLES = ("page.css", "attribution_page.css")
_SCRIPTS = ("theme.js",)
LEVELS = 10  # of colour on each side of zero, in attribution_page.css


@dataclass(frozen=True)
class AttributionPageCell:
    """One token: its text and name, the class of its colour, and its attribution."""

    text: str
    name: str
    position: int
    level: str
    score: str


@dataclass(frozen=True)
class AttributionPageText:
    """One text of the batch."""

    title: str
    cells: tuple[AttributionPageCell, ...]
    sums: str


@dataclass(frozen=True)
class AttributionPage:
    """What the template shows."""

    title: str
    caption: str
    meaning: str
    notes: tuple[str, ...]
    texts: tuple[AttributionPageText, ...]


def write_attribution_page(result: Attribution, path: str | os.PathLike[str]) -> int:
    """Write the page of attributions; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    page = AttributionPage(
        title=f"Attribution to the tokens of the input, by {result.method}",
        caption=recording_caption(result.metadata),
        meaning="Orange tokens raise the score, blue ones lower it; the largest attribution of a"
        f" text has the full colour. Attribution of token p: {result.formula}. {result.paper}.",
        notes=result.notes,
        texts=tuple(_text(result, number) for number in range(len(result.rows))),
    )
    return write_text(path, fill_template("attribution_page.html", _STYLES, _SCRIPTS, page))


def _text(result: Attribution, number: int) -> AttributionPageText:
    row = result.rows[number]
    scale = scale_of(row)
    cells = []
    for one in row.tokens:
        share = float(scale.position(np.array(one.score)))  # 0.5 for an attribution of 0
        level = (
            "anan"
            if math.isnan(share)
            else f"a{round(share * 2 * LEVELS) if scale.high else LEVELS}"
        )
        has_words = row.tokens and not one.token.text.isdecimal()
        text = visible(one.token.text) if has_words else f"{one.token.text} "
        name = token_text(one.token.text)
        cells.append(AttributionPageCell(text, name, one.position, level, number_text(one.score)))
    title = title_of(result, number).rstrip(":")
    return AttributionPageText(title, tuple(cells), sum_sentence(result, number))
