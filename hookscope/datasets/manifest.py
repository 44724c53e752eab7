"""What a folder of results is: the plan before the run, the manifest and the index after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from hookscope import strict_json
from hookscope.atomic import replacing, write_text
from hookscope.datasets.folder import INDEX, INPUTS, MANIFEST, PARTS, PLAN, read_json, slice_key
from hookscope.errors import RequestError, StoreError
from hookscope.filehash import sha256_of

SCHEMA = 1


def begin(folder: Path, plan: Mapping[str, Any]) -> set[str]:
    """Write down what the run does, or hold it against what an earlier run did.

    Args:
        folder: of results; it need not be there.
        plan: everything that the bytes depend on, as plain values.

    Returns:
        The names of the shards that are finished and still there.

    Raises:
        RequestError: an earlier run in ``folder`` did something else; names what.
        StoreError: the folder cannot be written.
    """
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"Cannot make {folder}: {error.strerror}.", "Name another --output."
        ) from (error)
    plain = json.loads(strict_json.dumps(plan))
    earlier = read_json(folder / PARTS / PLAN) or read_json(folder / MANIFEST)
    if earlier is None:
        write_text(folder / PARTS / PLAN, strict_json.dumps(plain, sort_keys=True, indent=1))
        return set()
    _demand_same(folder, earlier["options"], plain["options"])
    _demand_same(folder, earlier, plain)
    if (folder / MANIFEST).is_file():
        _take_apart(folder, earlier)
    sound = set()
    for part in parts_of(folder):
        if is_sound(folder, part):
            sound.add(part["file"])
        else:
            part_path(folder, part["first"]).unlink()
    return sound


def _demand_same(folder: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted({*earlier, *now} - {"schema", "shards", "fired", "silent"}):
        was, would_be = earlier.get(name), now.get(name)
        if was != would_be:
            raise RequestError(
                f"The run in {folder} had another {name}: {_short(was)}, and now it would be"
                f" {_short(would_be)}.",
                "Give the same command as then, or --force to begin anew.",
            )


def part_path(folder: Path, first: int) -> Path:
    """Where it is told what is known of the finished shard whose first row is ``first``."""
    return folder / PARTS / f"{first:08d}.json"


def parts_of(folder: Path) -> list[dict[str, Any]]:
    """What is known of the finished shards, in order."""
    return [read_json(path) for path in sorted((folder / PARTS).glob("[0-9]*.json"))]


def is_sound(folder: Path, part: Mapping[str, Any]) -> bool:
    """Whether a shard is there with the bytes that it had when it was written."""
    path = folder / part["file"]
    try:
        same_size: bool = path.stat().st_size == part["bytes"]
        return same_size and sha256_of(path) == part["sha256"]
    except OSError:
        return False


def _take_apart(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make of a finished folder an unfinished one in which each shard is known by itself."""
    with (folder / INPUTS).open(encoding="utf-8") as lines:
        for shard in manifest["shards"]:
            told = [json.loads(line) for line in islice(lines, shard["rows"])]
            known = strict_json.dumps({**shard, "inputs": told}, sort_keys=True)
            write_text(part_path(folder, shard["first"]), known)
    plan = {k: v for k, v in manifest.items() if k not in ("shards", "schema", "fired", "silent")}
    write_text(folder / PARTS / PLAN, strict_json.dumps(plan, sort_keys=True, indent=1))
    (folder / MANIFEST).unlink()


def join(folder: Path, plan: Mapping[str, Any], coverage: Mapping[str, Any]) -> dict[str, Any]:
    """Write manifest, index and table of inputs from what is known of the shards, reading none.

    Returns:
        The manifest.
    """
    parts = parts_of(folder)
    shards = [{k: v for k, v in part.items() if k != "inputs"} for part in parts]
    manifest = {**plan, **coverage, "schema": SCHEMA, "shards": shards}
    places = {
        slice_key(key["key"], part["first"], part["first"] + part["rows"]): part["file"]
        for part in parts
        for key in plan["keys"]
    }
    size = sum(part["bytes"] for part in parts)
    index = {"metadata": {"total_size": size}, "weight_map": places}
    _write_lines(folder / INPUTS, (line for part in parts for line in part["inputs"]))
    write_text(folder / INDEX, strict_json.dumps(index, sort_keys=True, indent=1))
    write_text(folder / MANIFEST, strict_json.dumps(manifest, sort_keys=True, indent=1))
    for path in (folder / PARTS).iterdir():
        path.unlink()
    (folder / PARTS).rmdir()
    return manifest


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with replacing(path, "Make room and add --resume.") as scratch, scratch.open("w") as file:
        file.writelines(strict_json.dumps(line) + "\n" for line in lines)


def _short(value: Any) -> str:
    text = "nothing" if value is None else strict_json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
