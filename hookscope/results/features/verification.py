"""Whether a folder of features is what its manifest says: shards, index and table of inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.errors import ResultsFileError, cause
from hookscope.results.features.folder import (
    INDEX,
    INPUTS,
    MANIFEST,
    SCHEMA,
    STATISTICS_ONLY,
    is_intact,
    read_json,
    slice_key,
)
from hookscope.results.features.location import Location
from hookscope.results.features.manifest import input_lines, lines_crc32
from hookscope.specs.output_path import header_in


@dataclass(frozen=True)
class Damage:
    """A file of the folder that is not as it should be, and in which way."""

    file: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """What came of a look at every file of a folder.

    Attributes:
        folder: where the features lie.
        rows: how many there should be.
        shards: how many shards there should be.
        bytes: their size, as it should be.
        damages: what is wrong, in the order of the shards; none where all is sound.
    """

    folder: str
    rows: int
    shards: int
    bytes: int
    damages: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is there and as it was written."""
        return not self.damages

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the verdict as a plain dict."""
        return {"ok": self.ok, **asdict(self)}


def verify_folder(
    place: Location, manifest: Mapping[str, Any], progress: Callable[[int, int], None]
) -> Verification:
    """Hold every file of a finished folder against its manifest.

    Args:
        place: the folder.
        manifest: what it should hold.
        progress: called with the shards that are done and all of them.
    """
    shards = manifest["shards"]
    damages: list[Damage] = []
    places: dict[str, tuple[str, int]] = {}
    whole, first = True, 0
    for done, shard in enumerate(shards):
        progress(done, len(shards))
        if shard["first"] != first:
            damages.append(Damage(MANIFEST, f"rows {first} to {shard['first']} are in no shard"))
        first = shard["first"] + shard["rows"]
        problem = _problem(place, shard, manifest["keys"], places)
        if problem:
            whole = False
            damages.append(Damage(shard["file"], problem))
    progress(len(shards), len(shards))
    if first != manifest["rows"]:
        damages.append(Damage(MANIFEST, f"its shards end at row {first} of {manifest['rows']}"))
    known = {shard["file"] for shard in shards}
    for name in place.names():
        if name.startswith("rows-") and name not in known:
            damages.append(Damage(name, "the manifest has no such shard"))
    if (fitted := manifest.get("fitted")) and (problem := _file_problem(place, fitted)):
        damages.append(Damage(fitted["file"], problem))
    old = manifest["schema"] < SCHEMA
    damages += [Damage(INDEX, problem) for problem in _index_problems(place, places, whole, old)]
    damages += [Damage(INPUTS, problem) for problem in _table_problems(place, manifest)]
    size = sum(shard["bytes"] for shard in shards)
    return Verification(str(place), manifest["rows"], len(shards), size, tuple(damages))


def _file_problem(place: Location, told: Mapping[str, Any]) -> str:
    """In what a file is not as the manifest tells; empty if it is."""
    try:
        size = place.size(told["file"])
    except ResultsFileError as error:
        return error.message.rstrip(".")
    if size is None:
        return "missing"
    if size != told["bytes"]:
        return f"{size} bytes, and it was written with {told['bytes']}"
    try:
        return "" if is_intact(place, told) else "its bytes are not those that were written"
    except OSError as error:
        return f"cannot be read: {cause(error)}"


def _problem(
    place: Location,
    shard: Mapping[str, Any],
    keys: list[Mapping[str, Any]],
    places: dict[str, tuple[str, int]],
) -> str:
    """What is wrong with a shard, empty if nothing is.

    File and bytes of each of its tensors are added to ``places``.
    """
    if problem := _file_problem(place, shard):
        return problem
    try:
        with place.open(shard["file"]) as file:
            table, _ = header_in(file)
    except (OSError, ValueError, RecursionError) as error:
        return f"cannot be read: {cause(error)}"
    spans = {name: told["data_offsets"] for name, told in table.items() if name != "__metadata__"}
    places |= {name: (shard["file"], end - start) for name, (start, end) in spans.items()}
    for key in keys:
        if key["reduce"] == STATISTICS_ONLY:  # of which no row is kept
            continue
        name = slice_key(key["key"], shard["first"], shard["first"] + shard["rows"])
        if table.get(name, {}).get("shape") != [shard["rows"], *key["shape"]]:
            return f"it holds no {name} of the shape that the manifest tells"
    return ""


def _index_problems(
    place: Location, places: dict[str, tuple[str, int]], whole: bool, old: bool
) -> Iterator[str]:
    """What the index says that shards do not.

    Args:
        place: the folder.
        places: file and bytes of each tensor.
        whole: whether all shards could be read.
        old: whether it was written without a checksum.
    """
    try:
        index = read_json(place, INDEX, old=old)
        told = {} if index is None else dict(index["weight_map"])
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
    wrong = [name for name, (file, _) in places.items() if told.get(name) != file]
    if whole:
        wrong += [name for name in told if name not in places]
    if wrong:
        yield f"not what the shards hold, at {wrong[0]} and {len(wrong) - 1} more places"
    there = sum(each for _, each in places.values())
    if whole and not wrong and size != there:
        yield f"its total_size is {size}, and the shards hold tensors of {there} bytes"


def _table_problems(place: Location, manifest: Mapping[str, Any]) -> Iterator[str]:
    line, rows = -1, manifest["rows"]
    try:
        if place.size(INPUTS) is None:
            yield "missing"
            return
        with place.open(INPUTS) as file:
            for line, text in enumerate(file):
                if json.loads(text)["row"] != line or not text.endswith(b"\n"):
                    yield f"line {line + 1} is not the whole one of row {line}"
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
    for shard, lines in zip(shards, input_lines(place, shards), strict=True):
        if shard.get("table_crc32") not in (None, lines_crc32(lines)):
            last = shard["first"] + shard["rows"]
            yield f"lines {shard['first'] + 1} to {last} are not those that were written"
