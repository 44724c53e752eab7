"""Features of a dataset as text: a run that wrote them, a folder, its statistics, an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.files.words import bytes_text, count_text, plural, shape_text, short_count_text
from hookscope.results.exports import ExportedTensor
from hookscope.results.records import Recording
from hookscope.specs.patterns import layer_text
from hookscope.stores.features.manifest import places_of_maxima
from hookscope.views.capture import capture_document
from hookscope.views.display import View, json_document, make_document
from hookscope.views.text.shared_parts import ALERT_STYLE, ORIGIN_COLUMNS, count_cell, number_cell
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

if TYPE_CHECKING:
    from hookscope.results.metadata import LayerStatistics
    from hookscope.stores.features.features import Features
    from hookscope.stores.features.folder_verification import Verification
    from hookscope.stores.features.manifest import Manifest

EXTRACTION_COLUMNS = (
    *ORIGIN_COLUMNS[:4],
    Column("rows", right=True),
    Column("shape of a row"),
    Column("dtype"),
)
EXTRACTION_SQUEEZE = drop("dtype", "type", "call", "what", "rows")
STATISTICS_NUMBERS = ("mean", "std", "min", "median", "max")
STATISTICS_COLUMNS = (
    *ORIGIN_COLUMNS[:4],
    Column("channels", right=True),
    Column("values", right=True),
    *(Column(title, right=True) for title in STATISTICS_NUMBERS),
    Column("dead", right=True),
)
STATISTICS_SQUEEZE = (
    *shorten(*STATISTICS_NUMBERS, "values"),
    *drop(
        "type", "what", "values", "note", "median", "min", "max", "std", "channels", "call", "mean"
    ),
)
FEATURES_COLUMNS = (
    *(Column("layer"), Column("type"), Column("what", optional=True), Column("call", right=True)),
    *(Column("shape of a row"), Column("dtype", optional=True), Column("reduced", optional=True)),
)
FEATURES_SQUEEZE = drop("type", "dtype", "call", "what", "reduced")


def _origin_cells(entry: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(layer_text(entry["module"])),
        Cell(entry["type"], style="cyan"),
        Cell(entry["what"]),
        count_cell(entry["call"]),
    )


def extraction_lines(manifest: Manifest, options: TextOptions) -> list[Text]:
    """Return what a run over a dataset wrote: a row for each key, and a sentence of totals."""
    entries = {entry["key"]: entry for entry in manifest["keys"]}
    keys = [entries[key] for key in entries if key not in places_of_maxima(entries)]
    rows = tuple(
        Row.of(
            *_origin_cells(key),
            count_cell(manifest["rows"]),
            Cell(shape_text(key["shape"])),
            Cell(key["dtype"]),
        )
        for key in keys
    )
    lines = result_table(Table(EXTRACTION_COLUMNS, rows, EXTRACTION_SQUEEZE, note=""), options)
    total = f"{plural(manifest['rows'], 'row')} of {plural(len(keys), 'tensor')}."
    if manifest["stopped_after"]:
        total += f" Each forward pass stopped after {manifest['stopped_after']}."
    return [*lines, *sentence(total, options, "bold")]


def statistics_lines(recording: Recording, options: TextOptions) -> list[Text]:
    """Return statistics over a dataset: a row for each layer, and how many channels are dead."""
    layers = recording.metadata["statistics"]
    rows = tuple(map(_statistics_row, layers))
    dead = sum(layer["dead"] for layer in layers)
    total = f"Over {plural(recording.metadata['rows'], 'input')}: "
    total += f"{plural(dead, 'channel')} always zero." if dead else "no channel is dead."
    table = result_table(Table(STATISTICS_COLUMNS, rows, STATISTICS_SQUEEZE), options)
    return join_blocks(table, sentence(total, options), options=options)


def _statistics_row(layer: LayerStatistics) -> Row:
    values = layer["values"]
    numbers = (layer["mean"], layer["std"], layer["min"], layer["median"], layer["max"])
    cells = (
        *_origin_cells(layer),
        Cell(count_text(layer["channels"]), value=layer["channels"]),
        Cell(count_text(values), short=short_count_text(values), value=values),
        *(number_cell(parse_number(number)) for number in numbers),
        Cell(
            count_text(layer["dead"]),
            value=layer["dead"],
            style="yellow" if layer["dead"] else "",
        ),
    )
    nonfinite = ((layer["nan"], "NaN"), (layer["inf"], "Inf"))
    note = ", ".join(f"{count_text(count)} {word}!" for count, word in nonfinite if count)
    return Row(cells, Cell(note, style=ALERT_STYLE))


def features_lines(features: Features, options: TextOptions) -> list[Text]:
    """Return a row for each tensor of a folder, and its rows and bytes."""
    entries = {str(entry["key"]): entry for entry in features.manifest["keys"]}
    rows = [
        Row.of(
            *_origin_cells(entry),
            Cell(shape_text(entry["shape"])),
            Cell(str(entry["dtype"])),
            Cell(str(entry["reduce"] or "")),
        )
        for entry in map(entries.__getitem__, features.keys)
    ]
    shards, model = features.manifest["shards"], features.manifest["model"]
    inputs = ", ".join(features.manifest["inputs"]["specs"])
    size = bytes_text(sum(shard["bytes"] for shard in shards))
    text = (
        f"{plural(features.rows, 'row')} from {inputs or 'no files'} in"
        f" {plural(len(shards), 'shard')} ({size}). Model: {model['spec']}, weights:"
        f" {model['weights']}."
    )
    if features.columns:
        text += f" Stored beside the rows: {', '.join(features.columns)}."
    table = result_table(Table(FEATURES_COLUMNS, tuple(rows), FEATURES_SQUEEZE, note=""), options)
    return join_blocks(table, sentence(text, options), options=options)


def exported_lines(tensors: Sequence[ExportedTensor], options: TextOptions) -> list[Text]:
    """Return what was exported: a row for each key."""
    rows = [
        Row.of(Cell(tensor.key), Cell(shape_text(tensor.shape)), Cell(str(tensor.dtype)))
        for tensor in tensors
    ]
    columns = (Column("key"), Column("shape"), Column("dtype"))
    return table_lines(Table(columns, tuple(rows), (("drop", "dtype"),), note=""), options)


def verification_lines(result: Verification, options: TextOptions) -> list[Text]:
    """Return a row for each damaged file, and the verdict."""
    content = f"{plural(result.rows, 'row')} in {plural(result.shards, 'shard')}"
    content += f" ({bytes_text(result.bytes)})"
    if result.ok:
        return sentence(f"Intact: {content}.", options, "green")
    rows = tuple(Row.of(Cell(damage.file), Cell(damage.problem)) for damage in result.damages)
    table = table_lines(Table((Column("file"), Column("problem")), rows, note=""), options)
    text = f"Damaged: {plural(len(rows), 'file')} of the folder ({content})."
    return join_blocks(table, sentence(text, options, ALERT_STYLE), options=options)


def features_document(features: Features) -> dict[str, Any]:
    """Return a features folder: what describes a single file as null, then the manifest."""
    single = {"file": features.folder, "recording": None, "tensors": None}
    return make_document("show", {**single, "features": features.manifest})


VIEW: View[Features] = View(
    features_lines,
    lambda features, file: features_document(features),
    columns=(*EXTRACTION_COLUMNS, *STATISTICS_COLUMNS, NOTE),
)
STATISTICS: View[Recording] = View(statistics_lines, capture_document)
VERIFICATION: View[Verification] = View(verification_lines, json_document("verify"))
EXTRACTION: View[Any] = View(
    lambda extraction, options: extraction_lines(extraction.manifest, options)
)
EXPORTED: View[Any] = View(
    lambda exported, options: exported_lines(exported.rows, options), json_document("export")
)
