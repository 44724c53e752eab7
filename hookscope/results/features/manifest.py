"""What a folder of results is: the plan before the run, the manifest and the index after it."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any, TypedDict

from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.files import strict_json
from hookscope.files.strict_json import type_error
from hookscope.results.features.folder import (
    FIT,
    FITTED,
    INDEX,
    INPUTS,
    MANIFEST,
    PARTS,
    PLAN,
    SCHEMA,
    clear_folder,
    damaged_file_error,
    is_intact,
    read_json,
    remove_partial_files,
    remove_stray_files,
    write_json,
)
from hookscope.results.features.location import Location, write_error
from hookscope.results.features.manifest_schema import (
    FileEntry,
    check_manifest,
    check_schema,
    is_finished_shard,
)

log = logging.getLogger("hookscope")

_PART = rf"{re.escape(PARTS)}\d+\.json"
# What a manifest has and a plan has not.
_NOT_PLANNED = {"options", "schema", "shards", "fired", "silent", "fitted"}


class _Metadata(TypedDict):
    manifest: dict[str, Any]


class _Index(TypedDict):
    metadata: _Metadata


def start_run(place: Location, plan: Mapping[str, Any]) -> set[str]:
    """Write down what the run does, or hold it against what an earlier run did.

    Args:
        place: the folder of results.
        plan: everything that the bytes depend on, as plain values.

    Where what tells of an earlier run is damaged, the copy of the manifest in the index is held
    against ``plan`` instead. Without that, nothing tells which run the shards are of: all rows are
    done again, and a warning says so.

    Returns:
        The names of the shards that are finished and sound.

    Raises:
        RequestError: an earlier run did something else; names what.
        ResultsFileError: its manifest is of a schema that this hookscope does not read.
        StoreError: the folder cannot be written.
    """
    plain = json.loads(strict_json.dumps(plan, surrogates=True))
    remove_partial_files(place)
    earlier = _earlier(place)
    if earlier is None:
        clear_folder(place)  # nothing is finished from which it could go on
        write_json(place, PLAN, plain)
        return set()
    if plain["options"].get("skip_bad"):  # what was done without it is what is done with it
        earlier = {**earlier, "options": {**earlier["options"], "skip_bad": True}}
    asked = {**earlier["options"], **plain["options"]}
    _demand_same(place, "", _deciding(earlier, asked), _deciding(plain, asked))
    if "shards" in earlier:
        _take_apart(place, earlier)
    write_json(place, PLAN, plain)
    place.remove(MANIFEST)
    if not ((told := _fitted(place)) and is_intact(place, told)):
        place.remove(FITTED)  # fitting it anew gives the same
    sound = set()
    for part in read_parts(place):
        if is_intact(place, part):
            sound.add(part["file"])
        else:
            place.remove(part_name(part["first"]))
    return sound


def _earlier(place: Location) -> dict[str, Any] | None:
    """The manifest of an earlier run, or its plan if it was not finished.

    None where nothing is finished, or where nothing whole tells of it.
    """
    problems: list[str] = []
    for read in (_manifest, _plan_of_parts, _copy_of_manifest):
        try:
            found = read(place)
        except ResultsFileError as error:
            problems.append(error.message)
            continue
        if found is not None:
            check_schema(place, {"schema": SCHEMA, **found})
            for problem in problems:
                log.warning("%s It is made again.", problem)
            return found
    for problem in problems:
        log.warning("%s All rows are done again.", problem)
    return None


def _manifest(place: Location) -> dict[str, Any] | None:
    return _tiled(place, read_json(place, MANIFEST, old=True))


def _plan_of_parts(place: Location) -> dict[str, Any] | None:
    names = [name for name in place.names() if re.fullmatch(_PART, name)]
    if not names:
        return None
    if next(iter(read_parts(place)), None) is None:
        raise damaged_file_error(
            place, names[0], "it is damaged, and so is all that is known of other shards"
        )
    plan = read_json(place, PLAN)
    if not (isinstance(plan, dict) and isinstance(plan.get("options"), dict)):
        raise damaged_file_error(place, PLAN, "it is missing or damaged")
    return plan


def _copy_of_manifest(place: Location) -> dict[str, Any] | None:
    index = read_json(place, INDEX, old=True)
    if type_error(index, _Index):
        return None
    return _tiled(place, index["metadata"]["manifest"])


def _tiled(place: Location, manifest: Any) -> dict[str, Any] | None:
    """A manifest whose shards hold all its rows; None for none."""
    if manifest is None:
        return None
    check_manifest(place, manifest)
    ends = [0]
    for shard in manifest["shards"]:
        if shard["first"] != ends[-1]:
            raise damaged_file_error(place, MANIFEST, f"no shard begins at row {ends[-1]}")
        ends.append(shard["first"] + shard["rows"])
    if ends[-1] != manifest["rows"]:
        raise damaged_file_error(
            place, MANIFEST, f"its shards hold {ends[-1]} of {manifest['rows']} rows"
        )
    return dict(manifest)


def _deciding(plan: Mapping[str, Any], asked: Iterable[str]) -> dict[str, Any]:
    """What must be the same to go on: first what explains the rest, what is asked and the model."""
    told = {name: plan.get(name, plan["options"].get(name)) for name in asked}
    told["model"] = plan.get("model")
    rest = sorted({*plan} - _NOT_PLANNED, key=lambda name: (name == "keys", name))
    told |= {name: plan[name] for name in rest}
    if isinstance(inputs := told.get("inputs"), dict) and inputs.get("sha256"):
        told["inputs"] = {name: inputs[name] for name in inputs if name != "words"}
    return told


def _demand_same(place: Location, name: str, was: Any, now: Any) -> None:
    unknown = name.endswith(("sha256", "blake3")) and None in (
        was,
        now,
    )  # as values that are offloaded have
    if was == now or unknown:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for each in {**was, **now}:
            _demand_same(place, f"{name} {each}", was.get(each), now.get(each))
        return
    raise RequestError(
        f"The run in {place} had another{name}: {_short(was)}, and now it would be {_short(now)}.",
        "Give the same command as then, or --force to begin anew.",
    )


def _fitted(place: Location) -> dict[str, Any] | None:
    """What is known of the file that rows are projected with; None if that is lost."""
    try:
        told = read_json(place, FIT)
    except ResultsFileError:
        return None
    return None if type_error(told, FileEntry) or told["file"] != FITTED else told


def part_name(first: int) -> str:
    """The file that tells what is known of the finished shard whose first row is ``first``."""
    return f"{PARTS}{first:08d}.json"


def read_parts(place: Location) -> Iterator[dict[str, Any]]:
    """Yield what is known of each finished shard, in order, with the lines of its rows.

    A shard of which what is told is damaged is as good as not finished.
    """
    # The longer ones last: numbers of more than eight digits are longer.
    for name in sorted(place.names(), key=lambda name: (len(name), name)):
        if not re.fullmatch(_PART, name):
            continue
        with suppress(ResultsFileError):
            if is_finished_shard(told := read_json(place, name)):
                yield told


def _take_apart(place: Location, manifest: Mapping[str, Any]) -> None:
    """Make of a finished folder an unfinished one in which each shard is known by itself."""
    kept = {shard["file"] for shard in manifest["shards"]}
    remove_stray_files(place, kept)  # of a run that was cut short while it cleaned up
    if "fitted" in manifest:
        write_json(place, FIT, manifest["fitted"])
    for shard, lines in zip(
        manifest["shards"], input_lines(place, manifest["shards"]), strict=True
    ):
        checksum = shard.pop("table_crc32", None)
        told = [_line(line) for line in lines]
        first, rows = shard["first"], shard["rows"]
        # Of what lacks its lines nothing is known, so that it is done again.
        whole = len(told) == rows and all(told[i].get("row") == first + i for i in range(rows))
        if whole and checksum in (None, lines_crc32(lines)):
            write_json(place, part_name(first), {**shard, "inputs": told})


def input_lines(place: Location, shards: Iterable[Mapping[str, Any]]) -> Iterator[list[bytes]]:
    """Yield the lines of the table of inputs for each shard, as far as they are there."""
    there = place.size(INPUTS) is not None
    with place.open(INPUTS) if there else nullcontext(()) as lines:
        for shard in shards:
            yield list(islice(lines, shard["rows"]))


def lines_crc32(lines: Iterable[bytes]) -> str:
    """Return the CRC-32 of the lines of one shard, as eight hexadecimal digits."""
    return f"{zlib.crc32(b''.join(lines)):08x}"


def _line(line: bytes) -> dict[str, Any]:
    """What a line tells; nothing if it is damaged."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {}


Gather = Callable[
    [Location, Sequence[dict[str, Any]]], tuple[list[dict[str, Any]], dict[str, str], int]
]


def finish_run(
    place: Location, plan: Mapping[str, Any], coverage: Mapping[str, Any], gather: Gather
) -> dict[str, Any]:
    """Write manifest, index and table of inputs from what is known of the shards.

    Args:
        place: the folder of results.
        plan: what the run did.
        coverage: which modules ran.
        gather: takes what is known of the shards; returns what the manifest tells of the files that
            hold the results, the file of each tensor, and the bytes of all tensors.

    Returns:
        The manifest.

    Raises:
        StoreError: not all shards are known, or something cannot be written.
    """
    shards, places, size = gather(place, _write_inputs(place))
    if (known := sum(shard["rows"] for shard in shards)) != plan["rows"]:
        raise StoreError(
            f"Of {plan['rows']} rows {known} are known in {place}, though all were written.",
            "Did something remove files there? The same command with --resume does the rest.",
        )
    lines = map(lines_crc32, input_lines(place, shards))
    shards = [{**shard, "table_crc32": crc} for shard, crc in zip(shards, lines, strict=True)]
    told = _fitted(place)
    fitted = {"fitted": told} if told else {}
    manifest = {**plan, **coverage, **fitted, "schema": SCHEMA, "shards": shards}
    metadata = {"total_size": size, "manifest": manifest}  # a copy, for one that gets damaged
    write_json(place, INDEX, {"metadata": metadata, "weight_map": places})
    write_json(place, MANIFEST, manifest)
    remove_stray_files(place, {shard["file"] for shard in shards})
    return manifest


def _write_inputs(place: Location) -> list[dict[str, Any]]:
    """Write the table of inputs, a shard's lines at a time; return what else is known of shards."""
    scratch, known = place.scratch(INPUTS), []
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            for part in read_parts(place):
                file.writelines(
                    f"{strict_json.dumps(line, surrogates=True)}\n" for line in part.pop("inputs")
                )
                known.append(part)
        place.take(scratch, INPUTS)
    except OSError as error:
        raise write_error(f"{INPUTS} to {place}", error) from error
    return known


def _short(value: Any) -> str:
    text = "nothing" if value is None else strict_json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
