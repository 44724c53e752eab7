"""``--resume``: what an earlier run left in a features folder, compared with the new run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

from hookscope.errors import RequestError, ResultsFileError
from hookscope.files import strict_json
from hookscope.stores.features import folder
from hookscope.stores.features.location import Location
from hookscope.stores.features.manifest import (
    Manifest,
    Plan,
    check_manifest,
    check_schema,
    fitted_entry,
    input_lines,
    lines_crc32,
    part_name,
    part_names,
    read_parts,
)

log = logging.getLogger("hookscope")

# Keys of a manifest that a plan does not have.
_NOT_PLANNED = {"options", "schema", "shards", "executed", "not_executed", "fitted"}


class _Metadata(TypedDict):
    manifest: dict[str, Any]


class _Index(TypedDict):
    metadata: _Metadata


def start_run(location: Location, plan: Plan) -> set[str]:
    """Write the plan of a run, after comparing it with the plan of an earlier run.

    If the manifest of an earlier run is damaged, the copy in the index is used. Without a copy the
    run of the shards is unknown: all rows are done again, with a warning.
    """
    plain = strict_json.loads(strict_json.dumps(plan, surrogates=True))
    folder.remove_partial_files(location)
    earlier = _earlier(location)
    if earlier is None:
        folder.clear_folder(location)  # nothing is finished, so nothing can be resumed
        folder.write_json(location, folder.PLAN, plain)
        return set()
    if plain["options"].get("skip_bad"):  # rows that were done without it are the same with it
        earlier = {**earlier, "options": {**earlier["options"], "skip_bad": True}}
    options = {**earlier["options"], **plain["options"]}
    _check_same(location, "", _comparable(earlier, options), _comparable(plain, options))
    if "shards" in earlier:
        _restore_parts(location, cast(Manifest, earlier))
    folder.write_json(location, folder.PLAN, plain)
    location.remove(folder.MANIFEST)
    if not ((fitted := fitted_entry(location)) and folder.is_intact(location, fitted)):
        location.remove(folder.FITTED)  # fitting again gives the same components
    intact = set()
    for part in read_parts(location):
        if folder.is_intact(location, part):
            intact.add(part["file"])
        else:
            location.remove(part_name(part["first"]))
    return intact


def _earlier(location: Location) -> dict[str, Any] | None:
    """The manifest or plan of an earlier run; None if no shard is finished, or all is damaged."""
    problems: list[str] = []
    for read in (_finished_manifest, _plan_of_parts, _copy_of_manifest):
        try:
            earlier = read(location)
        except ResultsFileError as error:
            problems.append(error.message)
            continue
        if earlier is not None:
            check_schema(location, {"schema": folder.SCHEMA, **earlier})
            for problem in problems:
                log.warning("%s It will be rewritten.", problem)
            return earlier
    for problem in problems:
        log.warning("%s All rows will be extracted again.", problem)
    return None


def _finished_manifest(location: Location) -> dict[str, Any] | None:
    return _checked(location, folder.read_json(location, folder.MANIFEST, old=True))


def _plan_of_parts(location: Location) -> dict[str, Any] | None:
    names = part_names(location)
    if not names:
        return None
    if next(iter(read_parts(location)), None) is None:
        raise folder.damaged_file_error(
            location, names[0], "it is damaged, and so are the entries of all other shards"
        )
    plan = folder.read_json(location, folder.PLAN)
    if not (isinstance(plan, dict) and isinstance(plan.get("options"), dict)):
        raise folder.damaged_file_error(location, folder.PLAN, "it is missing or damaged")
    return plan


def _copy_of_manifest(location: Location) -> dict[str, Any] | None:
    index = folder.read_json(location, folder.INDEX, old=True)
    if strict_json.type_error(index, _Index):
        return None
    return _checked(location, index["metadata"]["manifest"])


def _checked(location: Location, manifest: Any) -> dict[str, Any] | None:
    """Return a manifest whose shards have each row once; None if there is no manifest."""
    if manifest is None:
        return None
    check_manifest(location, manifest)
    ends = [0]
    for shard in manifest["shards"]:
        if shard["first"] != ends[-1]:
            raise folder.damaged_file_error(
                location, folder.MANIFEST, f"no shard begins at row {ends[-1]}"
            )
        ends.append(shard["first"] + shard["rows"])
    if ends[-1] != manifest["rows"]:
        raise folder.damaged_file_error(
            location, folder.MANIFEST, f"its shards contain {ends[-1]} of {manifest['rows']} rows"
        )
    return dict(manifest)


def _comparable(plan: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """The values that must be the same to resume; options and model, which cause others, first."""
    values = {name: plan["options"].get(name) for name in options}
    values["model"] = plan.get("model")
    rest = sorted({*plan} - _NOT_PLANNED, key=lambda name: (name == "keys", name))
    values |= {name: plan[name] for name in rest}
    if isinstance(inputs := values.get("inputs"), dict) and inputs.get("sha256"):
        values["inputs"] = {name: inputs[name] for name in inputs if name != "specs"}
    return values


def _check_same(location: Location, name: str, was: Any, now: Any) -> None:
    """Raise RequestError for the first value that differs."""
    # Offloaded weights have no hash.
    unknown = name.endswith(("sha256", "blake3")) and None in (was, now)
    if was == now or unknown:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            _check_same(location, f"{name} {key}", was.get(key), now.get(key))
        return
    raise RequestError(
        f"Cannot resume the run in {location}:{name} was {_short(was)}, and is {_short(now)} now.",
        "Run the same command as before, or use --force to start over.",
    )


def _restore_parts(location: Location, manifest: Manifest) -> None:
    """Turn a finished folder into an unfinished one, with an entry in ``.parts`` per shard."""
    kept = {shard["file"] for shard in manifest["shards"]}
    folder.remove_stray_files(location, kept)  # from a run that was interrupted while it cleaned up
    if "fitted" in manifest:
        folder.write_json(location, folder.FIT, manifest["fitted"])
    for shard, lines in zip(
        manifest["shards"], input_lines(location, manifest["shards"]), strict=True
    ):
        checksum = shard.pop("table_crc32", None)
        entries = [_parse_line(line) for line in lines]
        numbers = [entry.get("row") for entry in entries]
        # A shard without all its lines gets no entry, so that it is done again.
        complete = numbers == list(range(shard["first"], shard["first"] + shard["rows"]))
        if complete and checksum in (None, lines_crc32(lines)):
            folder.write_json(location, part_name(shard["first"]), {**shard, "inputs": entries})


def _parse_line(line: bytes) -> dict[str, Any]:
    """The entry in a line; empty if the line is damaged."""
    try:
        entry = strict_json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    return entry if isinstance(entry, dict) else {}


def _short(value: Any) -> str:
    text = "not set" if value is None else strict_json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
