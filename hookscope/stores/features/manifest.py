"""The files that describe a features folder: entries of shards, then a manifest and an index."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any, TypedDict, cast

from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.files import strict_json
from hookscope.files.output_path import ADDRESS, holds_features
from hookscope.results.records import Coverage
from hookscope.specs.extract_options import INDEX_SUFFIX, MAX
from hookscope.stores.features import folder
from hookscope.stores.features.location import Location, write_error

_READABLE_SCHEMAS = (1, folder.SCHEMA)
_PART = rf"{re.escape(folder.PARTS)}\d+\.json"


class RowFile(folder.FileEntry):
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

    fitted: folder.FileEntry
    stopped_after: str | None
    schema: Any  # ``check_schema`` reads it


def check_schema(location: Location, manifest: Mapping[str, Any]) -> None:
    """Raise ResultsFileError unless this version reads manifests of that schema."""
    if (schema := manifest.get("schema")) not in _READABLE_SCHEMAS:
        raise ResultsFileError(
            f"The features in {location} have schema {schema}, but this version of hookscope reads"
            f" {folder.SCHEMA}.",
            "Upgrade hookscope, or extract them again.",
        )


def check_manifest(location: Location, manifest: Any) -> None:
    """Raise ResultsFileError unless a manifest has valid types, and files of the folder only."""
    if strict_json.type_error(manifest, Manifest) or _has_negative(manifest):
        raise folder.damaged_file_error(location, folder.MANIFEST, "it is damaged")
    names = [shard["file"] for shard in manifest["shards"]]
    foreign = [name for name in names if not folder.is_row_file_name(name)]
    foreign += {manifest.get("fitted", {}).get("file", folder.FITTED)} - {folder.FITTED}
    if foreign:
        raise folder.damaged_file_error(
            location,
            folder.MANIFEST,
            f"it lists {foreign[0]!r}, which is not a file of a features folder",
        )


def is_finished_shard(part: Any) -> bool:
    """Whether a value is a ``FinishedShard`` whose file has a name that a run gives."""
    return not strict_json.type_error(part, FinishedShard) and folder.is_row_file_name(part["file"])


def _has_negative(manifest: Any) -> bool:
    sizes = [manifest["rows"]]
    for shard in manifest["shards"]:
        sizes += [shard["first"], shard["rows"], shard["bytes"]]
    for key in manifest["keys"]:
        sizes += key["shape"]
    return any(size < 0 for size in sizes)


# The manifest's entries of the files with the results, the file of each tensor, and the number of
# bytes of all tensors.
GatheredResults = tuple[list[RowFile], dict[str, str], int]
Gather = Callable[[Location, Sequence[RowFile]], GatheredResults]


def fitted_entry(location: Location) -> folder.FileEntry | None:
    """The entry of the file of components; None if it is missing or damaged."""
    try:
        entry = folder.read_json(location, folder.FIT)
    except ResultsFileError:
        return None
    is_entry = not strict_json.type_error(entry, folder.FileEntry)
    return entry if is_entry and entry["file"] == folder.FITTED else None


def part_name(first: int) -> str:
    """Name of the file with the entry of the finished shard whose first row is ``first``."""
    return f"{folder.PARTS}{first:08d}.json"


def part_names(location: Location) -> list[str]:
    """Return the names of the files with the entries of finished shards, in order."""
    names = [name for name in location.names() if re.fullmatch(_PART, name)]
    # Sorted by length first, because numbers of more than eight digits are longer.
    return sorted(names, key=lambda name: (len(name), name))


def read_parts(location: Location) -> Iterator[FinishedShard]:
    """Yield the entry of each finished shard, in order; a damaged one counts as unfinished."""
    for name in part_names(location):
        with suppress(ResultsFileError):
            if is_finished_shard(part := folder.read_json(location, name)):
                yield part


def input_lines(location: Location, shards: Iterable[RowFile]) -> Iterator[list[bytes]]:
    """Yield the lines of the table of inputs for each shard, as far as they exist."""
    exists = location.size(folder.INPUTS) is not None
    with location.open(folder.INPUTS) if exists else nullcontext(()) as lines:
        for shard in shards:
            yield list(islice(lines, shard["rows"]))


def lines_crc32(lines: Iterable[bytes]) -> str:
    """Return the CRC-32 of the lines of one shard, as eight hexadecimal digits."""
    return f"{zlib.crc32(b''.join(lines)):08x}"


def finish_run(location: Location, plan: Plan, coverage: Coverage, gather: Gather) -> Manifest:
    """Write manifest, index and table of inputs from the entries of the finished shards."""
    shards, files, size = gather(location, _write_inputs(location))
    if (known := sum(shard["rows"] for shard in shards)) != plan["rows"]:
        raise StoreError(
            f"{location} is incomplete: {known} of {plan['rows']} rows were found after writing.",
            "Files may have been removed during the run. Run the same command with --resume.",
        )
    lines = map(lines_crc32, input_lines(location, shards))
    entries = [{**shard, "table_crc32": crc} for shard, crc in zip(shards, lines, strict=True)]
    entry = fitted_entry(location)
    fitted = {"fitted": entry} if entry else {}
    results = {**coverage.to_json(), **fitted, "schema": folder.SCHEMA, "shards": entries}
    manifest = cast(Manifest, {**plan, **results})
    metadata = {"total_size": size, "manifest": manifest}  # a copy, in case the other is damaged
    folder.write_json(location, folder.INDEX, {"metadata": metadata, "weight_map": files})
    folder.write_json(location, folder.MANIFEST, manifest)
    folder.remove_stray_files(location, {shard["file"] for shard in shards})
    return manifest


def _write_inputs(location: Location) -> list[RowFile]:
    """Write the table of inputs, a shard's lines at a time; return the rest of each entry."""
    scratch = location.scratch(folder.INPUTS)
    shards: list[RowFile] = []
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            for part in read_parts(location):
                file.writelines(
                    f"{strict_json.dumps(line, surrogates=True)}\n" for line in part["inputs"]
                )
                shards.append(
                    {
                        "file": part["file"],
                        "first": part["first"],
                        "rows": part["rows"],
                        "bytes": part["bytes"],
                        "crc32": part["crc32"],
                    }
                )
        location.publish(scratch, folder.INPUTS)
    except OSError as error:
        raise write_error(f"{folder.INPUTS} to {location}", error) from error
    return shards


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of a finished folder."""
    if ADDRESS not in location.address and not os.path.isdir(location.address):
        exists = os.path.exists(location.address)
        parent = os.path.dirname(location.address) or "."
        if exists and holds_features(parent):
            raise RequestError(
                f"{location} is a file in a features folder, not the folder.",
                f"Give the folder: {parent}/",
            )
        raise RequestError(
            f"{location} is a file, not a folder."
            if exists
            else f"The folder {location} does not exist.",
            "Give a folder written by 'hookscope extract'.",
        )
    manifest = folder.read_json(location, folder.MANIFEST, old=True)
    if manifest is None and any(name.startswith(folder.PARTS) for name in location.names()):
        try:
            plan = folder.read_json(location, folder.PLAN) or {}
        except ResultsFileError:  # reported when the run is resumed
            plan = {}
        done = sum(part["rows"] for part in read_parts(location))
        raise StoreError(
            f"The features in {location} are incomplete: {done} of {plan.get('rows', '?')} rows are"
            " finished.",
            "Run the interrupted command again with --resume.",
        )
    if not isinstance(manifest, dict) or not {"rows", "keys", "shards"} <= set(manifest):
        reason = f"{folder.MANIFEST} describes none" if manifest else f"it has no {folder.MANIFEST}"
        raise RequestError(
            f"The folder {location} contains no features: {reason}.",
            "Give a folder written by 'hookscope extract'.",
        )
    check_schema(location, manifest)
    check_manifest(location, manifest)
    return cast(Manifest, manifest)
