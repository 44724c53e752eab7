"""A set of weights as text: the table of its tensors, and the statistics of some of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hookscope.files.words import bytes_text, count_text, plural, shape_text
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor
from hookscope.views.display import View, make_document
from hookscope.views.images.tensor_view import TensorSummary
from hookscope.views.stored_tensors import tensor_document
from hookscope.views.text.table import Cell, Column, Row, Table, drop
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    Column("tensor"),
    Column("shape"),
    Column("dtype"),
    Column("parameters", right=True),
    Column("bytes", right=True),
    Column("file", optional=True),
)
SQUEEZE = drop("file", "parameters", "dtype")


def weight_table_lines(weights: WeightSet, options: TextOptions) -> list[Text]:
    """Return a row for each tensor, and what there is in all. No values are read."""
    several = len({tensor.file for tensor in weights.tensors.values()}) > 1
    rows = tuple(_row(tensor, several) for tensor in weights.tensors.values())
    columns = COLUMNS if several else COLUMNS[:-1]
    squeeze = SQUEEZE if several else SQUEEZE[1:]
    table = result_table(Table(columns, rows, squeeze), options)
    lines = sentence(totals_text(weights), options)
    for note in weights.notes:
        lines += sentence(note, options)
    return join_blocks(table, lines, options=options)


def _row(tensor: WeightTensor, names_file: bool) -> Row:
    cells = (
        Cell(tensor.name),
        Cell(shape_text(tensor.shape)),
        Cell(tensor.dtype, style="cyan"),
        Cell(count_text(tensor.numel), value=tensor.numel),
        Cell(bytes_text(tensor.nbytes), value=tensor.nbytes),
        *([Cell(os.path.basename(tensor.file))] if names_file else []),
    )
    return Row(cells, Cell(f"= {tensor.tied_to}" if tensor.tied_to else "", style="magenta"))


def totals_text(weights: WeightSet) -> str:
    """Return the number of tensors, entries and bytes in a sentence, also for each dtype."""
    by_dtype: dict[str, int] = {}
    for tensor in weights.tensors.values():
        if not tensor.tied_to:
            by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.nbytes
    text = f"{plural(len(weights.tensors), 'tensor')}, {plural(weights.parameters, 'parameter')}"
    if weights.buffers:
        text += f", {plural(weights.buffers, 'buffer value')}"
    parts = ", ".join(f"{dtype} {bytes_text(n)}" for dtype, n in by_dtype.items())
    return f"{weights.kind}: {text}, {bytes_text(weights.nbytes)}" + (
        f" ({parts})." if len(by_dtype) > 1 else f" of {next(iter(by_dtype), 'no dtype')}."
    )


def weights_document(weights: WeightSet, summaries: Sequence[TensorSummary] = ()) -> dict[str, Any]:
    """Return a set of weights: ``file``, ``weights``, then the ``tensors`` of some summaries."""
    about = weights.to_json()
    if summaries:
        del about["tensors"]
    single = {"file": about.pop("file"), "recording": None, "weights": about}
    tensors = list(map(tensor_document, summaries))
    return make_document("show", {**single, "tensors": tensors or None})


VIEW: View[WeightSet] = View(weight_table_lines, lambda weights, file: weights_document(weights))
