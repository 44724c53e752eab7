"""The table of a run's page: each layer with the last value of each of its measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hookscope.file_analysis.runs.run_summary import RunSummary
from hookscope.files.words import count_text, number_text, visible
from hookscope.specs.patterns import layer_text
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.html.page import PageCell, PageColumn, PageRow
from hookscope.views.html.run_page import PageModel, RunPageRow

# The same numbers as in the table of ``show``.
_MEASURES = {
    "rms": "rms",
    "max": "max",
    "zeros": "zeros",
    "dead": "dead",
    "gradient at output": "grad_norm",
    "weight norm": "weight_norm",
    "weight gradient": "weight_grad_norm",
    "update ratio": "update_ratio",
}
RUN_COLUMNS = (
    PageColumn("#", number=True, about="execution order"),
    PageColumn("layer"),
    PageColumn("type"),
    *(PageColumn(title, number=True) for title in _MEASURES),
    PageColumn("first not finite", number=True, about="first sampled step with NaN or infinity"),
)


def layer_rows(number: int, run: TrainingRun, models: Sequence[PageModel]) -> Iterable[RunPageRow]:
    """Yield a row for each layer that run ``number`` measured, in execution order."""
    by_layer = {(layer.model, layer.layer): layer for layer in RunSummary.of(run).layers}
    for m, model in enumerate(models):
        for n, layer in enumerate(model.layers):
            if summary := by_layer.get((model.name, layer.name)):
                cells = (
                    PageCell(count_text(n + 1), str(n + 1)),
                    PageCell(visible(layer_text(layer.name))),
                    PageCell(visible(layer.type)),
                    *(_number_cell(getattr(summary, name)) for name in _MEASURES.values()),
                    _step_cell(summary.nonfinite_from),
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
