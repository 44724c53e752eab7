"""What a manifest tells, as types: its readers rely on no more than this, and on no less."""

from __future__ import annotations

from typing import Any, TypedDict

from hookscope.datasets.folder import MANIFEST, damaged
from hookscope.datasets.place import Place
from hookscope.typed_json import misfit

SCHEMA = 1


class File(TypedDict):
    """A file as it was written."""

    file: str
    bytes: int
    crc32: str


class ShardFile(File):
    """The file of a stretch of rows."""

    first: int
    rows: int


class Part(ShardFile):
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


def demand_whole(place: Place, manifest: Any) -> None:
    """Raise ResultsFileError unless a manifest tells all that is read of it."""
    if misfit(manifest, Manifest) or _has_negative(manifest):
        raise damaged(place, MANIFEST, "it is damaged")


def _has_negative(manifest: Any) -> bool:
    sizes = [manifest["rows"]]
    for shard in manifest["shards"]:
        sizes += [shard["first"], shard["rows"], shard["bytes"]]
    for key in manifest["keys"]:
        sizes += key["shape"]
    return any(size < 0 for size in sizes)
