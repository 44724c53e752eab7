"""The values of a sweep as a map of layers by columns, and the scale of its colours."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hookscope.files.words import number_text
from hookscope.results.sweep import Sweep, SweepCell
from hookscope.views.images.colors import ColorScale

UNSIGNED = ("kl", "output")  # metrics that are not negative
DIGITS = 3  # of a value in a cell


def sweep_values(result: Sweep) -> NDArray[np.float64]:
    """Return the metric of the map, layers by columns; NaN where it is not defined.

    Example:
        >>> from hookscope.results.records import Coverage
        >>> from hookscope.results.sweep import SweepBaseline, SweepColumn
        >>> cells = (SweepCell("fc", "Linear", score=-0.5),)
        >>> sweep_values(Sweep("zero", "", "score", 1, SweepBaseline(), ("fc",), (SweepColumn(),),
        ...                    cells, (), Coverage(), "", {})).tolist()
        [[-0.5]]
    """
    rows = [[cell_value(result, cell) for cell in cells] for _, cells in result.by_layer()]
    return np.array(rows, dtype=np.float64).reshape(len(result.layers), len(result.columns))


def cell_value(result: Sweep, cell: SweepCell | None) -> float:
    """Return the metric of the map of one cell; NaN if it is not defined."""
    value = None if cell is None else cell.metric(result.metric)
    return math.nan if value is None else value


def cell_text(result: Sweep, cell: SweepCell | None) -> str:
    """Return the metric of the map of one cell as text."""
    if cell is None:
        return ""
    return "failed" if cell.failed else number_text(cell.metric(result.metric), DIGITS)


def sweep_scale(result: Sweep) -> ColorScale:
    """Return the scale of the map: from 0 for metrics without a sign, else with 0 in the middle."""
    values = sweep_values(result)
    finite = np.abs(values[np.isfinite(values)])
    most = float(finite.max()) if finite.size else 0.0
    if result.metric in UNSIGNED:
        return ColorScale(0.0, most)
    return ColorScale(-most, most, diverging=True)
