"""The table of a run's page: each layer with the last value of each of its measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hookscope.results.runs.training_run import Curve, TrainingRun
from hookscope.views.html.page import PageCell, PageColumn, PageRow
from hookscope.views.html.run_charts import (
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER,
    PARAMETER_GRAD,
    UPDATE,
    is_drawn,
    series_group,
)
from hookscope.views.html.run_page import PageModel, RunPageRow
from hookscope.views.text.formats import count_text, layer_text, number_text, visible

_MEASURES = {
    "rms": (OUTPUT, "rms"),
    "max": (OUTPUT, "max"),
    "zeros": (OUTPUT, "zeros"),
    "dead": (OUTPUT, "dead"),
    "gradient at output": (OUTPUT_GRAD, "norm"),
    "parameter norm": (PARAMETER, "norm"),
    "gradient norm": (PARAMETER_GRAD, "norm"),
    "update ratio": (UPDATE, "ratio"),
}
RUN_COLUMNS = (
    PageColumn("#", number=True, about="execution order"),
    PageColumn("layer"),
    PageColumn("type"),
    *(PageColumn(title, number=True) for title in _MEASURES),
    PageColumn("first not finite", number=True, about="first sampled step with NaN or infinity"),
)


@dataclass
class LastValues:
    """What is known of a layer at the end of a run.

    Attributes:
        values: the last value of each group and measure, the largest of all outputs or parameters;
            NaN if one is NaN.
        first_nonfinite: the first sampled step with NaN or infinity; None without any.
    """

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    first_nonfinite: int | None = None

    def add(self, group: str, curve: Curve) -> None:
        """Take one more curve of the layer into account."""
        at = group, curve.series.measure
        last = float(curve.values[-1])
        known = self.values.get(at, last)
        self.values[at] = float(np.maximum(known, last))  # NaN if one of them is
        bad = ~np.isfinite(curve.values)
        if curve.series.measure == "nonfinite":
            bad |= curve.values > 0
        if bad.any():
            step = int(curve.steps[bad.argmax()])
            known_step = self.first_nonfinite
            self.first_nonfinite = step if known_step is None else min(step, known_step)


def layer_rows(number: int, run: TrainingRun, models: Sequence[PageModel]) -> Iterable[RunPageRow]:
    """Yield a row for each layer that run ``number`` measured, in execution order."""
    by_layer: dict[tuple[str, str], LastValues] = {}
    for series in run.layers.series:
        if series.module and is_drawn(series):
            values = by_layer.setdefault((series.model, series.module), LastValues())
            values.add(series_group(series), run.layers.curve(series))
    for m, model in enumerate(models):
        for n, layer in enumerate(model.layers):
            if last := by_layer.get((model.name, layer.name)):
                cells = (
                    PageCell(count_text(n + 1), str(n + 1)),
                    PageCell(visible(layer_text(layer.name))),
                    PageCell(visible(layer.type)),
                    *(_number_cell(last.values.get(at)) for at in _MEASURES.values()),
                    _step_cell(last.first_nonfinite),
                )
                yield RunPageRow(number, m, n, PageRow(n, cells))


def _number_cell(value: float | None) -> PageCell:
    if value is None:
        return PageCell("")
    if math.isnan(value):
        return PageCell("NaN", loud=True)
    return PageCell(number_text(value), repr(value), loud=math.isinf(value))


def _step_cell(step: int | None) -> PageCell:
    return PageCell("") if step is None else PageCell(count_text(step), str(step), loud=True)
