"""Verification of a features folder against its manifest: shards, index and table of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.errors import ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.progress_types import Progress
from hookscope.results.result import Result
from hookscope.stores.features.folder import (
    INDEX,
    INPUTS,
    MANIFEST,
    SCHEMA,
    STATISTICS_ONLY,
    FileEntry,
    is_intact,
    read_json,
    slice_key,
)
from hookscope.stores.features.location import Location
from hookscope.stores.features.manifest import (
    KeyEntry,
    Manifest,
    ShardEntry,
    input_lines,
    lines_crc32,
)
from hookscope.stores.weights.safetensors_reader import stored_tensors


@dataclass(frozen=True)
class Damage:
    """A missing or damaged file of the folder, and what is wrong with it."""

    file: str
    problem: str


@dataclass(frozen=True)
class Verification(Result):
    """The result of verifying every file of a folder.

    Attributes:
        folder: the features folder.
        rows: number of rows, by the manifest.
        shards: number of shards, by the manifest.
        bytes: size of the shards, by the manifest.
        damages: damaged files in the order of the shards; empty if all files are intact.
    """

    view = "features.VERIFICATION"

    folder: str
    rows: int
    shards: int
    bytes: int
    damages: tuple[Damage, ...]

    def __repr__(self) -> str:
        state = "intact" if self.ok else f"{len(self.damages)} damages"
        rows = f"{self.rows} rows in {self.shards} shards"
        return f"<Verification of {self.folder}: {state}, {rows}>"

    @property
    def ok(self) -> bool:
        """Whether every file exists with the bytes that were written."""
        return not self.damages

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the verdict as a plain dict."""
        return {"ok": self.ok, **asdict(self)}


def verify_folder(location: Location, manifest: Manifest, progress: Progress) -> Verification:
    """Compare every file of a finished folder with its manifest."""
    shards = manifest["shards"]
    damages: list[Damage] = []
    stored: dict[str, tuple[str, int]] = {}
    readable, first = True, 0
    for done, shard in enumerate(shards):
        progress(done, len(shards))
        if shard["first"] != first:
            damages.append(Damage(MANIFEST, f"rows {first} to {shard['first']} are in no shard"))
        first = shard["first"] + shard["rows"]
        problem = _shard_problem(location, shard, manifest["keys"], stored)
        if problem:
            readable = False
            damages.append(Damage(shard["file"], problem))
    progress(len(shards), len(shards))
    if first != manifest["rows"]:
        damages.append(Damage(MANIFEST, f"its shards end at row {first} of {manifest['rows']}"))
    known = {shard["file"] for shard in shards}
    for name in location.names():
        if name.startswith("rows-") and name not in known:
            damages.append(Damage(name, "not listed in the manifest"))
    if (fitted := manifest.get("fitted")) and (problem := _file_problem(location, fitted)):
        damages.append(Damage(fitted["file"], problem))
    old = manifest["schema"] < SCHEMA
    index_problems = _index_problems(location, stored, readable, old)
    damages += [Damage(INDEX, problem) for problem in index_problems]
    damages += [Damage(INPUTS, problem) for problem in _table_problems(location, manifest)]
    size = sum(shard["bytes"] for shard in shards)
    return Verification(str(location), manifest["rows"], len(shards), size, tuple(damages))


def _file_problem(location: Location, entry: FileEntry) -> str:
    """How a file differs from its entry in the manifest; empty if it does not."""
    try:
        size = location.size(entry["file"])
    except ResultsFileError as error:
        return error.message.rstrip(".")
    if size is None:
        return "missing"
    if size != entry["bytes"]:
        return f"{size} bytes instead of {entry['bytes']}"
    try:
        return "" if is_intact(location, entry) else "its checksum does not match"
    except OSError as error:
        return f"cannot be read: {cause(error)}"


def _shard_problem(
    location: Location,
    shard: ShardEntry,
    keys: list[KeyEntry],
    stored: dict[str, tuple[str, int]],
) -> str:
    """What is wrong with a shard; empty if it is intact. Its tensors are added to ``stored``."""
    if problem := _file_problem(location, shard):
        return problem
    try:
        with location.open(shard["file"]) as file:
            _, tensors = stored_tensors(file)
    except (OSError, ValueError) as error:
        return f"cannot be read: {cause(error)}"
    stored |= {name: (shard["file"], e.end - e.start) for name, e in tensors.items()}
    for key in keys:
        if key["reduce"] == STATISTICS_ONLY:  # no rows are stored
            continue
        name = slice_key(key["key"], shard["first"], shard["first"] + shard["rows"])
        if name not in tensors or tensors[name].shape != (shard["rows"], *key["shape"]):
            return f"it has no {name} of the shape in the manifest"
    return ""


def _index_problems(
    location: Location, stored: dict[str, tuple[str, int]], readable: bool, old: bool
) -> Iterator[str]:
    """How the index differs from the shards."""
    try:
        index = read_json(location, INDEX, old=old)
        files = {} if index is None else dict(index["weight_map"])
        size = 0 if index is None else index["metadata"]["total_size"]
    except ResultsFileError as error:
        yield error.message.rstrip(".")
        return
    except (KeyError, TypeError, ValueError):
        yield "cannot be read"
        return
    if index is None:
        yield "missing"
        return
    wrong = [name for name, (file, _) in stored.items() if files.get(name) != file]
    if readable:
        wrong += [name for name in files if name not in stored]
    if wrong:
        yield f"does not match the shards at {wrong[0]} and {len(wrong) - 1} more places"
    total = sum(each for _, each in stored.values())
    if readable and not wrong and size != total:
        yield f"its total_size is {size}, but the tensors in the shards have {total} bytes"


def _table_problems(location: Location, manifest: Manifest) -> Iterator[str]:
    line, rows = -1, manifest["rows"]
    try:
        if location.size(INPUTS) is None:
            yield "missing"
            return
        with location.open(INPUTS) as file:
            for line, text in enumerate(file):
                if strict_json.loads(text)["row"] != line or not text.endswith(b"\n"):
                    yield f"line {line + 1} is not a complete entry of row {line}"
                    return
    except ResultsFileError as error:
        yield error.message.rstrip(".")
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"line {line + 1} cannot be read: {cause(error)}"
        return
    if line + 1 != rows:
        yield f"{line + 1} lines for {rows} rows"
        return
    shards = manifest["shards"]
    for shard, lines in zip(shards, input_lines(location, shards), strict=True):
        if shard.get("table_crc32") not in (None, lines_crc32(lines)):
            last = shard["first"] + shard["rows"]
            yield f"lines {shard['first'] + 1} to {last} do not match their checksum"
