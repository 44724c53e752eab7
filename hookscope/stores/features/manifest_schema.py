"""The types of a manifest's content. Its readers rely only on these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from hookscope.errors import ResultsFileError
from hookscope.files.strict_json import type_error
from hookscope.specs.extract_options import INDEX_SUFFIX, MAX
from hookscope.stores.features.folder import (
    FITTED,
    MANIFEST,
    SCHEMA,
    FileEntry,
    damaged_file_error,
    is_row_file_name,
)
from hookscope.stores.features.location import Location

_READABLE_SCHEMAS = (1, SCHEMA)


class RowFile(FileEntry):
    """A file of rows; ``first`` is the number of its first row."""

    first: int
    rows: int


class ShardEntry(RowFile, total=False):
    """A shard; ``table_crc32`` is the checksum of its lines in the table of inputs."""

    table_crc32: str


class FinishedShard(RowFile):
    """A finished shard of an unfinished run; ``inputs`` are its lines in the table of inputs."""

    inputs: list[dict[str, Any]]


class _StoredKey(TypedDict):
    key: str
    module: str
    type: str
    call: int
    what: str
    shape: list[int]
    dtype: str
    reduce: str | None


class KeyEntry(_StoredKey, total=False):
    """A key of the stored rows; ``shape`` is the shape of one row.

    ``kind`` is that of the records; ``edges`` are those of the bins of a histogram. ``positions``
    is ``tokens`` if the positions of a row, or the stored indices, count the tokens of a text.
    """

    kind: str
    edges: list[float]
    positions: str


def places_of_maxima(entries: Mapping[str, KeyEntry]) -> set[str]:
    """The keys, of the entries of a manifest, that have where the maxima of another key are."""
    maxima = [key for key, entry in entries.items() if (entry["reduce"] or "").startswith(MAX)]
    places = {f"{key}{INDEX_SUFFIX}" for key in maxima}
    return {place for place in places if "positions" in entries.get(place, {})}


SIDES = "sides"
SHORTER_SIDE = "shorter side"


class VisiblePart(TypedDict):
    """The part in the middle of an image that becomes the model's input.

    ``width`` and ``height`` are shares: if ``of`` is ``sides`` of the image's own width and height,
    else both of its shorter side.
    """

    of: str
    width: float
    height: float


class _InputRows(TypedDict):
    specs: list[str]
    rows: int


class InputsEntry(_InputRows, total=False):
    """The inputs of the rows; ``columns`` are those of the table besides path or item.

    ``visible_part`` is stored for images if a layer has rows with channels, height and width.
    """

    columns: list[str]
    visible_part: VisiblePart


class ModelEntry(TypedDict):
    """The model that was run."""

    spec: str
    weights: str | None


class PlannedInputs(InputsEntry):
    """The inputs of a plan; ``sha256`` is the hash of their names, None for a Dataset."""

    sha256: str | None


class PlannedModel(ModelEntry):
    """The model of a plan, with the hashes of its weights and of its code."""

    source: str
    blake3: str | None
    state_blake3: str | None
    code_sha256: str | None


class PlanOrigin(TypedDict):
    """The model and the options of a plan."""

    command: str
    options: dict[str, Any]
    model: PlannedModel
    seed: int
    device: str
    dtype: str
    stopped_after: str | None
    versions: dict[str, str]


class Plan(PlanOrigin):
    """The plan of a run: everything that the bytes of its results depend on."""

    keys: list[KeyEntry]
    inputs: PlannedInputs
    rows: int
    batch: int
    shard_rows: int


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
    """A complete manifest; ``fitted`` is the file of the components of ``pca``."""

    fitted: FileEntry
    stopped_after: str | None
    schema: Any  # ``check_schema`` reads it


def check_schema(location: Location, manifest: Mapping[str, Any]) -> None:
    """Raise ResultsFileError unless this version reads manifests of that schema."""
    if (schema := manifest.get("schema")) not in _READABLE_SCHEMAS:
        raise ResultsFileError(
            f"The features in {location} have schema {schema}, but this version of hookscope reads"
            f" {SCHEMA}.",
            "Upgrade hookscope, or extract them again.",
        )


def check_manifest(location: Location, manifest: Any) -> None:
    """Raise ResultsFileError unless a manifest has the types of ``Manifest``.

    The names of its files must be those that a run gives, so none is outside the folder.
    """
    if type_error(manifest, Manifest) or _has_negative(manifest):
        raise damaged_file_error(location, MANIFEST, "it is damaged")
    names = [shard["file"] for shard in manifest["shards"]]
    foreign = [name for name in names if not is_row_file_name(name)]
    foreign += {manifest.get("fitted", {}).get("file", FITTED)} - {FITTED}
    if foreign:
        raise damaged_file_error(
            location, MANIFEST, f"it lists {foreign[0]!r}, which is not a file of a features folder"
        )


def is_finished_shard(part: Any) -> bool:
    """Whether a value is a ``FinishedShard`` whose file has a name that a run gives."""
    return not type_error(part, FinishedShard) and is_row_file_name(part["file"])


def _has_negative(manifest: Any) -> bool:
    sizes = [manifest["rows"]]
    for shard in manifest["shards"]:
        sizes += [shard["first"], shard["rows"], shard["bytes"]]
    for key in manifest["keys"]:
        sizes += key["shape"]
    return any(size < 0 for size in sizes)
