"""The features of a dataset: what is in a folder, what of it was exported, what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.text import Text

from hookscope.views.text.json import document
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.records import LOUD
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import plural, shape_text, size

if TYPE_CHECKING:
    from hookscope.results.features.checking import Verification
    from hookscope.results.features.features import Features

COLUMNS = (
    *(Column("layer"), Column("type"), Column("what", dull=True), Column("call", right=True)),
    *(Column("shape of a row"), Column("dtype", dull=True), Column("reduced", dull=True)),
)
SQUEEZE: tuple[Squeeze, ...] = (
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
        f" {plural(len(shards), 'shard')} ({size(sum(shard['bytes'] for shard in shards))});"
        f" the model is {features.manifest['model']['word']}, its weights"
        f" {features.manifest['model']['weights']}."
    )
    table = lower(Table(COLUMNS, tuple(rows), SQUEEZE, note=""), width, ascii)
    return blocks(table, sentence(text, width, ascii), width=width)


def features_document(features: Features) -> dict[str, Any]:
    """Return ``file``, what a single file would hold as null, and the manifest as ``features``."""
    told = {"file": features.folder, "recording": None, "tensors": None}
    return document("show", {**told, "features": features.manifest})


class Shaped(Protocol):
    """What has a key, a shape and a dtype: rows of features, a tensor that was exported."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


def rows_lines(chosen: Sequence[Shaped], width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each key, with its shape: of all rows, or of the tensor."""
    rows = [
        Row((Cell(one.key), Cell(shape_text(one.shape)), Cell(str(one.dtype)))) for one in chosen
    ]
    columns = (Column("key"), Column("shape"), Column("dtype"))
    return lower(Table(columns, tuple(rows), (("drop", "dtype"),), note=""), width, ascii)


def verify_lines(found: Verification, width: int | None, ascii: bool = False) -> list[Text]:
    """Return a row for each damaged file, and the verdict."""
    what = f"{plural(found.rows, 'row')} in {plural(found.shards, 'shard')} ({size(found.bytes)})"
    if found.ok:
        return sentence(f"Sound: {what}, as they were written.", width, ascii, "green")
    rows = tuple(Row((Cell(one.file), Cell(one.problem))) for one in found.damages)
    table = lower(Table((Column("file"), Column("problem")), rows, note=""), width, ascii)
    text = f"Damaged: {plural(len(rows), 'file')} of a folder of {what}."
    return blocks(table, sentence(text, width, ascii, LOUD), width=width)
