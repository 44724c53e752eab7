"""The models that a program called, as a table."""

from __future__ import annotations

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.words import count_text
from hookscope.results.program_models import ProgramModel, ProgramModels
from hookscope.views.display import View, filed_document
from hookscope.views.text.table import Cell, Column, Row, Table, drop
from hookscope.views.text.text_table import TextOptions, result_table, sentence

COLUMNS = (
    Column("model"),
    Column("class"),
    Column("parameters", "params", right=True),
    Column("calls", right=True),
    Column("first call"),
    Column("device"),
    Column("dtype"),
    Column("mode"),
)
SQUEEZE = drop("mode", "dtype", "device", "parameters", "class")


def program_models_lines(result: ProgramModels, options: TextOptions) -> list[Text]:
    """Return a row for each model with parameters, then the other modules and what was not seen."""
    large = [model for model in result.models if model.parameters]
    small = [model for model in result.models if not model.parameters]
    lines = result_table(Table(COLUMNS, tuple(map(_row, large)), SQUEEZE), options)
    if small:
        names = ", ".join(model.name for model in small)
        lines += sentence(f"Modules without parameters that were called too: {names}.", options)
    for one in result.unseen:
        lines += sentence(f"Not seen: {one.what}: {one.reason}.", options)
    return lines


def _row(model: ProgramModel) -> Row:
    kind = f"{model.wrapper}({model.type})" if model.wrapper else model.type
    return Row(
        (
            Cell(visible(model.name)),
            Cell(visible(kind)),
            Cell(count_text(model.parameters), value=model.parameters),
            Cell(count_text(model.calls), value=model.calls),
            Cell(visible(model.place)),
            Cell(model.device),
            Cell(model.dtype),
            Cell(model.mode),
        )
    )


VIEW: View[ProgramModels] = View(program_models_lines, filed_document("run"))
