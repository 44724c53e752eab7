"""What a manifest tells, as types: its readers rely on no more than this, and on no less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from hookscope.errors import ResultsFileError
from hookscope.files.typed_json import misfit
from hookscope.results.features.folder import FITTED, MANIFEST, SCHEMA, damaged, is_name_of_rows
from hookscope.results.features.location import Place

_READ = (1, SCHEMA)


class File(TypedDict):
    """A file as it was written."""

    file: str
    bytes: int
    crc32: str


class _Stretch(File):
    first: int
    rows: int


class ShardFile(_Stretch, total=False):
    """The file of a stretch of rows; ``table_crc32`` is of its lines in the table of inputs."""

    table_crc32: str


class Part(_Stretch):
    """What is known of a shard until all are finished; ``inputs`` are the lines of its rows."""

    inputs: list[dict[str, Any]]


class Key(TypedDict):
    """What is kept of each row under one name; ``shape`` is that of a row."""

    key: str
    module: str
    type: str
    call: int
    what: str
    shape: list[int]
    dtype: str
    reduce: str | None


class Inputs(TypedDict):
    """What the rows were read from."""

    words: list[str]
    rows: int


class Model(TypedDict):
    """The model that was run."""

    word: str
    weights: str | None


class _Finished(TypedDict):
    rows: int
    keys: list[Key]
    shards: list[ShardFile]
    options: dict[str, Any]
    model: Model
    inputs: Inputs
    device: str
    command: str
    versions: dict[str, Any]


class Manifest(_Finished, total=False):
    """A whole manifest; ``fitted`` is the file that rows were projected with."""

    fitted: File


def demand_known(place: Place, manifest: Mapping[str, Any]) -> None:
    """Raise ResultsFileError unless this hookscope reads manifests of that schema."""
    if (schema := manifest.get("schema")) not in _READ:
        raise ResultsFileError(
            f"The features in {place} have schema {schema}, and this hookscope reads schema"
            f" {SCHEMA}.",
            "Upgrade hookscope, or capture them again.",
        )


def demand_whole(place: Place, manifest: Any) -> None:
    """Raise ResultsFileError unless a manifest holds all that is read of it.

    The names of files that it holds are those that a run gives, so none leads out of the folder.
    """
    if misfit(manifest, Manifest) or _has_negative(manifest):
        raise damaged(place, MANIFEST, "it is damaged")
    names = [shard["file"] for shard in manifest["shards"]]
    foreign = [name for name in names if not is_name_of_rows(name)]
    foreign += {manifest.get("fitted", {}).get("file", FITTED)} - {FITTED}
    if foreign:
        raise damaged(place, MANIFEST, f"it names {foreign[0]!r}, which is not a file of results")


def fits_part(part: Any) -> bool:
    """Whether a value is what is known of a finished shard, under a name that a run gives."""
    return not misfit(part, Part) and is_name_of_rows(part["file"])


def _has_negative(manifest: Any) -> bool:
    sizes = [manifest["rows"]]
    for shard in manifest["shards"]:
        sizes += [shard["first"], shard["rows"], shard["bytes"]]
    for key in manifest["keys"]:
        sizes += key["shape"]
    return any(size < 0 for size in sizes)
