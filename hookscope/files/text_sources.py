"""The inputs of a dataset of texts: files with a text in each line or row, folders of tables."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from hookscope.errors import InputError
from hookscope.files.hub_source import names_hub
from hookscope.files.input_files import LINES_PREFIX, list_files
from hookscope.files.input_list import is_listing
from hookscope.files.output_path import ADDRESS

LINES, JSON_LINES, CSV, PARQUET, DATASET = "lines", "jsonl", "csv", "parquet", "dataset"
HUB = "hub"
DEFAULT_COLUMN = "text"

_KINDS = {".txt": LINES, ".jsonl": JSON_LINES, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET}
_LARGE = (JSON_LINES, PARQUET)
_FILE = re.compile(
    r"(?P<path>.+(?P<suffix>\.(txt|jsonl|csv|tsv|parquet)))(:(?P<column>.+))?",
    re.DOTALL | re.IGNORECASE,
)
# What Dataset.save_to_disk and DatasetDict.save_to_disk of the package datasets write.
_TABLE_FILES = ("state.json", "dataset_info.json")
_SPLITS = "dataset_dict.json"


@dataclass(frozen=True)
class TextSource:
    """A file or folder whose lines or rows are texts."""

    path: str
    kind: str
    column: str | None = None


def names_texts(spec: str) -> bool:
    """Whether a spec stands for the lines or rows of a file or of a table. No file is read.

    >>> names_texts("reviews.jsonl:body"), names_texts("lines:notes"), names_texts("photos/")
    (True, True, False)
    """
    if is_listing(spec) or names_hub(spec):  # the files in @list.txt are named one by one
        return False
    return spec.startswith(LINES_PREFIX) or bool(_FILE.fullmatch(spec)) or _folder(spec) is not None


def needs_dataset(spec: str) -> bool:
    """Whether a spec names a table that only datasets can have, not the input of one run.

    >>> needs_dataset("reviews.jsonl"), needs_dataset("numbers.csv")
    (True, False)
    """
    parts = _FILE.fullmatch(spec)
    several = is_listing(spec) or names_hub(spec)
    return several or bool(parts and _KINDS[parts["suffix"].lower()] in _LARGE)


def text_sources(input: Any) -> list[TextSource] | None:
    """Return the sources of texts that the input of a dataset stands for; None if it has none.

    A spec is ``FILE``, ``FILE:COLUMN``, a glob, or ``lines:FILE`` for a file with any suffix.
    """
    values = input if isinstance(input, list | tuple) else [input]
    if not values or not all(isinstance(value, str | os.PathLike) for value in values):
        return None
    specs = [os.fspath(value) for value in values]
    texts = [spec for spec in specs if names_texts(spec)]
    if not texts:
        return None
    if len(texts) < len(specs):
        other = next(spec for spec in specs if spec not in texts)
        raise InputError(
            f"{texts[0]!r} is a source of texts, but {other!r} is not.",
            "Extract texts and other inputs separately.",
        )
    return [source for spec in texts for source in _sources(spec)]


def _sources(spec: str) -> list[TextSource]:
    if spec.startswith(LINES_PREFIX):
        return [TextSource(path, LINES) for path in list_files(spec.removeprefix(LINES_PREFIX))]
    if (folder := _folder(spec)) is not None:
        return [folder]
    parts = _FILE.fullmatch(spec)
    assert parts is not None
    kind, column = _KINDS[parts["suffix"].lower()], parts["column"]
    if kind == LINES and column:
        raise InputError(
            f"{spec!r} names a column, but each line of a .txt file is a text.",
            f"Write {parts['path']}.",
        )
    if ADDRESS in parts["path"] and not os.path.lexists(parts["path"]):
        if kind != PARQUET:
            raise InputError(
                f"{spec!r} is an address, from which tables of Parquet alone are read.",
                "Download the file.",
            )
        return [TextSource(parts["path"], kind, column)]
    return [TextSource(path, kind, column) for path in list_files(parts["path"])]


def _folder(spec: str) -> TextSource | None:
    """The folder of a dataset that a spec names, with or without a column; None for another."""
    path, column = spec, None
    if not os.path.isdir(path):
        path, _, column = spec.rpartition(":")
    if not path or not os.path.isdir(path):
        return None
    if all(os.path.isfile(os.path.join(path, name)) for name in _TABLE_FILES):
        return TextSource(path, DATASET, column or None)
    if os.path.isfile(os.path.join(path, _SPLITS)):
        splits = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        raise InputError(
            f"The folder {path!r} has a dataset for each split: {', '.join(splits)}.",
            f"Name one of them, such as {os.path.join(path, splits[0] if splits else 'train')}.",
        )
    return None
