"""A sweep as a page: a table of layers by positions, heads or experts, coloured by the effect."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from hookscope.files.words import number_text
from hookscope.results.sweep import Sweep, SweepCell
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
from hookscope.views.images.sweep_values import (
    DIGITS,
    cell_text,
    cell_value,
    sweep_scale,
)
from hookscope.views.text.sweep import column_title, meanings, title_text


def write_sweep_page(result: Sweep, path: str | os.PathLike[str]) -> int:
    """Write the page of a sweep; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    scale = sweep_scale(result)
    ends = np.linspace(scale.low, scale.high, LEVELS + 1)
    page = LayerMapPage(
        title=title_text(result),
        caption=recording_caption(result.metadata),
        meaning=(*meanings(result), f"The colour is {result.metric}. {result.reuse}"),
        notes=_notes(result),
        scale=tuple(number_text(float(end), DIGITS) for end in ends),
        color="d" if scale.diverging else "p",
        corner="layer",
        maps=(_map(result),),
    )
    return write_layer_map_page(page, path)


def _notes(result: Sweep) -> tuple[str, ...]:
    left = [f"Skipped: {layer_text(x.layer)} ({x.reason})." for x in result.left_out]
    failed = {f"Failed: {layer_text(c.layer)}. {c.failed}": None for c in result.cells if c.failed}
    return (*left, *failed)


def _map(result: Sweep) -> LayerMap:
    rows = [
        LayerMapRow(layer_text(layer), tuple(_cells(result, layer, cells)))
        for layer, cells in result.by_layer()
    ]
    columns = [column_title(result, n) or "whole layer" for n in range(len(result.columns))]
    return LayerMap(_heading(result), tuple(columns), tuple(reversed(rows)))


def _heading(result: Sweep) -> str:
    return f"By {result.axis}" if result.axis else "By layer"


def _cells(result: Sweep, layer: str, cells: Sequence[SweepCell | None]) -> list[LayerMapCell]:
    scale = sweep_scale(result)
    values = np.array([cell_value(result, cell) for cell in cells])
    letter = "d" if scale.diverging else "p"
    shares = scale.position(values)
    return [
        LayerMapCell(
            cell_text(result, cell),
            f"{letter}{round(float(share) * LEVELS)}" if np.isfinite(share) else "pnan",
            "" if cell is None else _details(result, cell),
        )
        for cell, share in zip(cells, shares, strict=True)
    ]


def _details(result: Sweep, cell: SweepCell) -> str:
    if cell.failed:
        return cell.failed
    lines = [cell.layer]
    if result.axis:
        lines.append(f"{result.axis} {result.columns[cell.column].name}")
    lines += [f"{name}: {number_text(cell.metric(name))}" for name in result.metrics]
    return "\n".join(lines)
