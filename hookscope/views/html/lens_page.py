"""The logit lens as a page: a table of layers by positions for each text."""

from __future__ import annotations

import math
import os

from hookscope.files.words import number_text, token_text
from hookscope.results.lens import Lens, LensCell, LensRow
from hookscope.specs.patterns import layer_text
from hookscope.views.html.layer_map_page import (
    LEVELS,
    LayerMap,
    LayerMapCell,
    LayerMapPage,
    LayerMapRow,
    write_layer_map_page,
)
from hookscope.views.images.figure_labels import recording_caption


def write_lens_page(result: Lens, path: str | os.PathLike[str]) -> int:
    """Write the page of a lens; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
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
