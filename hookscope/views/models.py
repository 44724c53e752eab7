"""The list of models with a name, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from hookscope.files.words import count_text, plural, short_count_text
from hookscope.specs.catalog import ModelInfo
from hookscope.views.display import View, make_document
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, result_table, sentence

COLUMNS = (
    Column("model"),
    Column("task"),
    Column("parameters", "params", right=True),
    Column("input"),
    Column("weights"),
)
SQUEEZE = (*drop("weights"), *shorten("parameters"), *drop("input", "parameters", "task"))


def models_lines(models: Sequence[ModelInfo], options: TextOptions) -> list[Text]:
    """Return one row for each model, and how many there are."""
    rows = tuple(
        Row.of(
            Cell(model.name),
            Cell(model.task, style="cyan"),
            _parameters_cell(model.parameters),
            Cell(model.input),
            Cell(" ".join(model.weights), full=",".join(model.weights)),
        )
        for model in models
    )
    lines = result_table(Table(COLUMNS, rows, SQUEEZE, note=""), options)
    return [*lines, *sentence(f"{plural(len(models), 'model')}.", options, "bold")]


def _parameters_cell(number: int | None) -> Cell:
    if number is None:
        return Cell("-")
    return Cell(count_text(number), short_count_text(number), value=number)


def models_document(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Return the listed models, each with all its fields."""
    return make_document("models", {"models": [asdict(model) for model in models]})


VIEW: View[Sequence[ModelInfo]] = View(
    models_lines, lambda models, file: models_document(models), columns=COLUMNS
)
