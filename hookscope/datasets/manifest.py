"""What a folder of results is: the plan before the run, the manifest and the index after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hookscope import strict_json
from hookscope.datasets.folder import (
    FIT,
    FITTED,
    INDEX,
    INPUTS,
    MANIFEST,
    PARTS,
    PLAN,
    clear,
    clear_strays,
    damaged,
    is_sound,
    read_json,
    write_json,
)
from hookscope.datasets.place import Place, cannot_write
from hookscope.datasets.schema import SCHEMA, File, Part, demand_whole
from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.typed_json import misfit

_PART = rf"{re.escape(PARTS)}\d+\.json"
# What a manifest has and a plan has not.
_NOT_PLANNED = {"options", "schema", "shards", "fired", "silent", "fitted"}


def begin(place: Place, plan: Mapping[str, Any]) -> set[str]:
    """Write down what the run does, or hold it against what an earlier run did.

    Args:
        place: the folder of results.
        plan: everything that the bytes depend on, as plain values.

    Returns:
        The names of the shards that are finished and sound.

    Raises:
        RequestError: an earlier run did something else; names what.
        ResultsFileError: what tells of it is damaged.
        StoreError: the folder cannot be written.
    """
    plain = json.loads(strict_json.dumps(plan))
    manifest = read_json(place, MANIFEST)
    if manifest is None and next(iter(parts_of(place)), None) is None:
        clear(place)  # nothing is finished from which it could go on
        write_json(place, PLAN, plain)
        return set()
    earlier = read_json(place, PLAN) if manifest is None else manifest
    if manifest is not None:
        demand_whole(place, manifest)
    elif not (isinstance(earlier, dict) and isinstance(earlier.get("options"), dict)):
        raise damaged(place, PLAN, "it is damaged")
    if plain["options"].get("skip_bad"):  # what was done without it is what is done with it
        earlier = {**earlier, "options": {**earlier["options"], "skip_bad": True}}
    asked = {**earlier["options"], **plain["options"]}
    _demand_same(place, "", _deciding(earlier, asked), _deciding(plain, asked))
    if manifest is not None:
        _take_apart(place, manifest)
    write_json(place, PLAN, plain)
    place.remove(MANIFEST)
    if not ((told := _told(place, FIT, File)) and is_sound(place, told)):
        place.remove(FITTED)  # fitting it anew gives the same
    sound = set()
    for part in parts_of(place):
        if is_sound(place, part):
            sound.add(part["file"])
        else:
            place.remove(part_name(part["first"]))
    return sound


def _deciding(plan: Mapping[str, Any], asked: Iterable[str]) -> dict[str, Any]:
    """What must be the same to go on: first what explains the rest, what is asked and the model."""
    told = {name: plan.get(name, plan["options"].get(name)) for name in asked}
    told["model"] = plan.get("model")
    rest = sorted({*plan} - _NOT_PLANNED, key=lambda name: (name == "keys", name))
    told |= {name: plan[name] for name in rest}
    if isinstance(inputs := told.get("inputs"), dict) and inputs.get("sha256"):
        told["inputs"] = {name: inputs[name] for name in inputs if name != "words"}
    return told


def _demand_same(place: Place, name: str, was: Any, now: Any) -> None:
    unknown = name.endswith("sha256") and None in (was, now)  # as values that are offloaded have
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


def _told(place: Place, name: str, kind: Any) -> Any:
    """What a file of ours tells; None where it is missing or damaged."""
    try:
        told = read_json(place, name)
    except ResultsFileError:
        return None
    return None if misfit(told, kind) else told


def part_name(first: int) -> str:
    """The file that tells what is known of the finished shard whose first row is ``first``."""
    return f"{PARTS}{first:08d}.json"


def parts_of(place: Place) -> Iterator[dict[str, Any]]:
    """Yield what is known of each finished shard, in order, with the lines of its rows.

    A shard of which what is told is damaged is as good as not finished.
    """
    # The longer ones last: numbers of more than eight digits are longer.
    for name in sorted(place.names(), key=lambda name: (len(name), name)):
        if re.fullmatch(_PART, name) and (told := _told(place, name, Part)):
            yield told


def _take_apart(place: Place, manifest: Mapping[str, Any]) -> None:
    """Make of a finished folder an unfinished one in which each shard is known by itself."""
    kept = {shard["file"] for shard in manifest["shards"]}
    clear_strays(place, kept)  # of a run that was cut short while it cleaned up
    if "fitted" in manifest:
        write_json(place, FIT, manifest["fitted"])
    lines = _lines(place)
    for shard in manifest["shards"]:
        told = list(islice(lines, shard["rows"]))
        rows = range(shard["first"], shard["first"] + shard["rows"])
        # Of what lacks its lines nothing is known, so that it is done again.
        if [line.get("row") for line in told] == list(rows):
            write_json(place, part_name(shard["first"]), {**shard, "inputs": told})


def _lines(place: Place) -> Iterator[dict[str, Any]]:
    """The table of inputs, as far as it is there; nothing is told in a line that is damaged."""
    if place.size(INPUTS) is None:
        return
    with place.open(INPUTS) as file:
        for line in file:
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                told = None
            yield told if isinstance(told, dict) else {}


Gather = Callable[
    [Place, Sequence[dict[str, Any]]], tuple[list[dict[str, Any]], dict[str, str], int]
]


def join(
    place: Place, plan: Mapping[str, Any], coverage: Mapping[str, Any], gather: Gather
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
    told = _told(place, FIT, File)
    fitted = {"fitted": told} if told else {}
    manifest = {**plan, **coverage, **fitted, "schema": SCHEMA, "shards": shards}
    write_json(place, INDEX, {"metadata": {"total_size": size}, "weight_map": places})
    write_json(place, MANIFEST, manifest)
    clear_strays(place, {shard["file"] for shard in shards})
    return manifest


def _write_inputs(place: Place) -> list[dict[str, Any]]:
    """Write the table of inputs, a shard's lines at a time; return what else is known of shards."""
    scratch, known = place.scratch(INPUTS), []
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            for part in parts_of(place):
                file.writelines(f"{strict_json.dumps(line)}\n" for line in part.pop("inputs"))
                known.append(part)
        place.take(scratch, INPUTS)
    except OSError as error:
        raise cannot_write(f"{INPUTS} to {place}", error) from error
    return known


def _short(value: Any) -> str:
    text = "nothing" if value is None else strict_json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
