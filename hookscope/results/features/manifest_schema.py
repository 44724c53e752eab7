"""What a manifest tells, as types: its readers rely on no more than this, and on no less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from hookscope.errors import ResultsFileError
from hookscope.files.strict_json import type_error
from hookscope.results.features.folder import (
    FITTED,
    MANIFEST,
    SCHEMA,
    damaged_file_error,
    is_row_file_name,
)
from hookscope.results.features.location import Location

_READ = (1, SCHEMA)


class FileEntry(TypedDict):
    """A file as it was written."""

    file: str
    bytes: int
    crc32: str


class _Stretch(FileEntry):
    first: int
    rows: int


class ShardEntry(_Stretch, total=False):
    """The file of a stretch of rows; ``table_crc32`` is of its lines in the table of inputs."""

    table_crc32: str


class FinishedShard(_Stretch):
    """What is known of a shard until all are finished; ``inputs`` are the lines of its rows."""

    inputs: list[dict[str, Any]]


class KeyEntry(TypedDict):
    """What is kept of each row under one name; ``shape`` is that of a row."""

    key: str
    module: str
    type: str
    call: int
    what: str
    shape: list[int]
    dtype: str
    reduce: str | None


class InputsEntry(TypedDict):
    """What the rows were read from."""

    words: list[str]
    rows: int


class ModelEntry(TypedDict):
    """The model that was run."""

    word: str
    weights: str | None


class _Finished(TypedDict):
    rows: int
    keys: list[KeyEntry]
    shards: list[ShardEntry]
    options: dict[str, Any]
    model: ModelEntry
    inputs: InputsEntry
    device: str
    command: str
    versions: dict[str, Any]


class Manifest(_Finished, total=False):
    """A whole manifest; ``fitted`` is the file that rows were projected with."""

    fitted: FileEntry


def check_schema(place: Location, manifest: Mapping[str, Any]) -> None:
    """Raise ResultsFileError unless this hookscope reads manifests of that schema."""
    if (schema := manifest.get("schema")) not in _READ:
        raise ResultsFileError(
            f"The features in {place} have schema {schema}, and this hookscope reads schema"
            f" {SCHEMA}.",
            "Upgrade hookscope, or capture them again.",
        )


def check_manifest(place: Location, manifest: Any) -> None:
    """Raise ResultsFileError unless a manifest holds all that is read of it.

    The names of files that it holds are those that a run gives, so none leads out of the folder.
    """
    if type_error(manifest, Manifest) or _has_negative(manifest):
        raise damaged_file_error(place, MANIFEST, "it is damaged")
    names = [shard["file"] for shard in manifest["shards"]]
    foreign = [name for name in names if not is_row_file_name(name)]
    foreign += {manifest.get("fitted", {}).get("file", FITTED)} - {FITTED}
    if foreign:
        raise damaged_file_error(
            place, MANIFEST, f"it names {foreign[0]!r}, which is not a file of results"
        )


def is_finished_shard(part: Any) -> bool:
    """Whether a value is what is known of a finished shard, under a name that a run gives."""
    return not type_error(part, FinishedShard) and is_row_file_name(part["file"])


def _has_negative(manifest: Any) -> bool:
    sizes = [manifest["rows"]]
    for shard in manifest["shards"]:
        sizes += [shard["first"], shard["rows"], shard["bytes"]]
    for key in manifest["keys"]:
        sizes += key["shape"]
    return any(size < 0 for size in sizes)
