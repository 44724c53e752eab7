"""What a run over a dataset wrote: its keys, and how many rows each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.results.records import Recording
from hookscope.views.text.documents import document
from hookscope.views.text.formats import (
    bytes_text,
    count_text,
    plural,
    shape_text,
    short_count_text,
    visible,
)
from hookscope.views.text.shared_parts import ALERT_STYLE, number_cell
from hookscope.views.text.text_table import (
    Cell,
    Column,
    Row,
    Squeeze,
    Table,
    join_blocks,
    sentence,
    table_lines,
)

if TYPE_CHECKING:
    from hookscope.results.features.features import Features
    from hookscope.results.features.verification import Verification

EXTRACTION_COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", dull=True),
    Column("call", right=True, dull=True),
    Column("rows", right=True),
    Column("shape of a row"),
    Column("dtype"),
)

EXTRACTION_SQUEEZE: tuple[Squeeze, ...] = (
    ("drop", "dtype"),
    ("drop", "type"),
    ("drop", "call"),
    ("drop", "what"),
    ("drop", "rows"),
)


def extraction_lines(
    manifest: Mapping[str, Any], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return one row for each key, and a line about the whole.

    Args:
        manifest: of the folder.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = tuple(
        Row(
            (
                Cell(visible(key["module"], ascii)),
                Cell(visible(key["type"], ascii), style="cyan"),
                Cell(visible(key["what"], ascii)),
                Cell(str(key["call"])),
                Cell(str(manifest["rows"])),
                Cell(shape_text(key["shape"]) or "one number"),
                Cell(key["dtype"]),
            )
        )
        for key in manifest["keys"]
    )
    lines = table_lines(Table(EXTRACTION_COLUMNS, rows, EXTRACTION_SQUEEZE, note=""), width, ascii)
    whole = f"{plural(manifest['rows'], 'row')} of {plural(len(manifest['keys']), 'tensor')}."
    if manifest["stopped_after"]:
        whole += f" Each pass ended after {visible(manifest['stopped_after'], ascii)}."
    return [*lines, *sentence(whole, width, ascii, "bold")]


STATISTICS_NUMBERS = ("mean", "std", "min", "median", "max")

STATISTICS_COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", dull=True),
    Column("call", right=True, dull=True),
    Column("channels", right=True),
    Column("values", right=True),
    *(Column(title, right=True) for title in STATISTICS_NUMBERS),
    Column("dead", right=True),
)

STATISTICS_SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in (*STATISTICS_NUMBERS, "values")),
    *(("drop", title) for title in ("type", "what", "values", "note", "median", "min", "max")),
    *(("drop", title) for title in ("std", "channels", "call", "mean")),
)


def statistics_lines(recording: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table: each layer's numbers over all channels, and how many of them are dead.

    Args:
        recording: of a file of statistics.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = tuple(_statistics_row(told) for told in recording.metadata["statistics"])
    dead = sum(told["dead"] for told in recording.metadata["statistics"])
    end = f"Over {plural(recording.metadata['rows'], 'input')}: "
    end += f"{plural(dead, 'channel')} never above zero." if dead else "no channel is dead."
    table = table_lines(Table(STATISTICS_COLUMNS, rows, STATISTICS_SQUEEZE), width, ascii)
    return join_blocks(table, sentence(end, width, ascii), width=width)


def _statistics_row(told: dict[str, Any]) -> Row:
    values = told["values"]
    cells = (
        Cell(told["module"]),
        Cell(told["type"], style="cyan"),
        Cell(told["what"]),
        Cell(str(told["call"])),
        Cell(count_text(told["channels"]), full=str(told["channels"])),
        Cell(count_text(values), short=short_count_text(values), full=str(values)),
        *(number_cell(parse_number(told[name])) for name in STATISTICS_NUMBERS),
        Cell(
            count_text(told["dead"]), full=str(told["dead"]), style="yellow" if told["dead"] else ""
        ),
    )
    loud = ", ".join(
        f"{count_text(told[n])} {t}!" for n, t in (("nan", "NaN"), ("inf", "Inf")) if told[n]
    )
    return Row(cells, Cell(loud, style="bold red"))


FEATURES_COLUMNS = (
    *(Column("layer"), Column("type"), Column("what", dull=True), Column("call", right=True)),
    *(Column("shape of a row"), Column("dtype", dull=True), Column("reduced", dull=True)),
)

FEATURES_SQUEEZE: tuple[Squeeze, ...] = (
    *(("drop", title) for title in ("type", "dtype", "call", "what", "reduced")),
)


def features_lines(features: Features, width: int | None, ascii: bool = False) -> list[Text]:
    """Return what is kept of each input, and how much of it there is.

    Args:
        features: what lies in the folder.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    told = {str(one["key"]): one for one in features.manifest["keys"]}
    rows = [
        Row(
            (
                Cell(str(one["module"])),
                Cell(str(one["type"]), style="cyan"),
                Cell(str(one["what"])),
                Cell(str(one["call"])),
                Cell(shape_text(one["shape"])),
                Cell(str(one["dtype"])),
                Cell(str(one["reduce"] or "")),
            )
        )
        for one in map(told.__getitem__, features.keys)
    ]
    shards = features.manifest["shards"]
    words = ", ".join(features.manifest["inputs"]["words"])
    text = (
        f"{plural(features.rows, 'row')} from {words or 'no file'} in"
        f" {plural(len(shards), 'shard')} ({bytes_text(sum(shard['bytes'] for shard in shards))});"
        f" the model is {features.manifest['model']['word']}, its weights"
        f" {features.manifest['model']['weights']}."
    )
    table = table_lines(
        Table(FEATURES_COLUMNS, tuple(rows), FEATURES_SQUEEZE, note=""), width, ascii
    )
    return join_blocks(table, sentence(text, width, ascii), width=width)


def features_document(features: Features) -> dict[str, Any]:
    """Return ``file``, what a single file would hold as null, and the manifest as ``features``."""
    told = {"file": features.folder, "recording": None, "tensors": None}
    return document("show", {**told, "features": features.manifest})


class ExportedTensor(Protocol):
    """What has a key, a shape and a dtype: rows of features, a tensor that was exported."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


def exported_lines(
    chosen: Sequence[ExportedTensor], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return one row for each key, with its shape: of all rows, or of the tensor."""
    rows = [
        Row((Cell(one.key), Cell(shape_text(one.shape)), Cell(str(one.dtype)))) for one in chosen
    ]
    columns = (Column("key"), Column("shape"), Column("dtype"))
    return table_lines(Table(columns, tuple(rows), (("drop", "dtype"),), note=""), width, ascii)


def verification_lines(found: Verification, width: int | None, ascii: bool = False) -> list[Text]:
    """Return a row for each damaged file, and the verdict."""
    what = f"{plural(found.rows, 'row')} in {plural(found.shards, 'shard')} ({bytes_text(found.bytes)})"
    if found.ok:
        return sentence(f"Sound: {what}, as they were written.", width, ascii, "green")
    rows = tuple(Row((Cell(one.file), Cell(one.problem))) for one in found.damages)
    table = table_lines(Table((Column("file"), Column("problem")), rows, note=""), width, ascii)
    text = f"Damaged: {plural(len(rows), 'file')} of a folder of {what}."
    return join_blocks(table, sentence(text, width, ascii, ALERT_STYLE), width=width)
