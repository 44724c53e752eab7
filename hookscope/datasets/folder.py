"""The folder of results of a whole dataset: the names in it, and whether it may be written to.

Torch-free. Features, one row for each input, lie in shards of a set number of rows; a manifest
tells what they are, an index in which shard each stretch of rows lies, a table where each row came
from. What is known of finished shards while the run is under way lies in ``.parts``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

from hookscope import strict_json
from hookscope.datasets.place import Place
from hookscope.errors import RequestError, ResultsFileError, cause

MANIFEST = "manifest.json"
INDEX = "features.safetensors.index.json"
INPUTS = "inputs.jsonl"
STATISTICS = "statistics.safetensors"  # of all rows, where no row is kept
STATISTICS_ONLY = "statistics"  # what the manifest calls that way of reducing
FITTED = "pca.safetensors"  # what rows are projected with, where they are
PARTS = ".parts/"
PLAN = f"{PARTS}plan.json"  # what the run does, which is told before the first shard
FIT = f"{PARTS}fitted.json"  # size and checksum of what was fitted
_SHARD = r"rows-\d{8,}\.safetensors"
_OURS = "|".join((_SHARD, *map(re.escape, (MANIFEST, INDEX, INPUTS, STATISTICS, FITTED))))
# Names that nobody else would choose: they tell a folder of results from another.
_SIGNS = "|".join((_SHARD, re.escape(INDEX), rf"{re.escape(PARTS)}.*"))


def shard_name(first: int) -> str:
    """Name of the shard whose first row is ``first``.

    >>> shard_name(512)
    'rows-00000512.safetensors'
    """
    return f"rows-{first:08d}.safetensors"


def slice_key(key: str, first: int, last: int) -> str:
    """Name of a tensor's rows from ``first`` up to, and without, ``last``.

    >>> slice_key("layer4/output", 0, 512)
    'layer4/output[0:512]'
    """
    return f"{key}[{first}:{last}]"


def read_json(place: Place, name: str) -> Any:
    """Return what a file of ours holds; None if there is none.

    Raises:
        ResultsFileError: it cannot be read, or is no JSON.
    """
    if place.size(name) is None:
        return None
    try:
        with place.open(name) as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(place, name, cause(error)) from error


def damaged(place: Place, name: str, why: str) -> ResultsFileError:
    """The error for a file of ours that is not as we write it, and that a run begins with."""
    return ResultsFileError(
        f"Cannot read {name} in {place}: {why}.",
        "Make the results anew: the command that wrote them, with --force.",
    )


def write_json(place: Place, name: str, value: Mapping[str, Any]) -> None:
    """Write a file of ours, the same bytes for the same value."""
    text = strict_json.dumps(value, sort_keys=True, indent=1)
    place.write(name, f"{text}\n".encode())


def is_sound(place: Place, shard: Mapping[str, Any]) -> bool:
    """Whether a shard is there with the bytes that it had when it was written."""
    if place.size(shard["file"]) != shard["bytes"]:
        return False
    return _crc32(place, shard["file"]) == str(shard["crc32"])


def crc32_in(file: BinaryIO) -> str:
    """Return the CRC-32 of what is read from ``file``, as eight hexadecimal digits.

    It is to find damage, and is not meant to withstand forgery: a checksum that does takes longer
    than writing the file.
    """
    checksum = 0
    while chunk := file.read(1 << 20):
        checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def _crc32(place: Place, name: str) -> str:
    with place.open(name) as file:
        return crc32_in(file)


def check_folder(place: Place, *, resume: bool, force: bool) -> None:
    """Make sure that results can go to a folder.

    Raises:
        RequestError: it cannot be made or written to, holds what hookscope did not write, or holds
            results, finished or not, and neither ``resume`` nor ``force`` is given.
    """
    if resume and force:
        raise RequestError(
            "--resume goes on with what is there, and --force begins anew.",
            "Leave out one of the two.",
        )
    place.demand_writable()
    names = place.names()
    if names and not any(re.fullmatch(_SIGNS, name) for name in names):
        raise RequestError(
            f"The folder {place} holds files and no results of hookscope: {names[0]}, for one.",
            "Name an empty folder or a new one.",
        )
    if names and not (resume or force):
        state = "finished" if MANIFEST in names else "cut short"
        raise RequestError(
            f"The folder {place} holds the results of a run that was {state}.",
            "Add --resume to go on with the same command, or --force to begin anew.",
        )


def clear(place: Place) -> None:
    """Remove from a folder what hookscope wrote there, and nothing else."""
    # What the folder is known by goes last: whoever is killed before that may begin again.
    for name in sorted(place.names(), key=(PLAN, INDEX).__contains__):
        if re.fullmatch(_OURS, name) or name.startswith(PARTS) or _is_half_written(name):
            place.remove(name)


def clear_strays(place: Place, kept: Collection[str]) -> None:
    """Remove the shards that are not in ``kept``, and what was known of any while it was made.

    What processes that were killed had half written goes too.
    """
    for name in place.names():
        stray = re.fullmatch(_SHARD, name) and name not in kept
        if stray or name.startswith(PARTS) or _is_half_written(name):
            place.remove(name)


def _is_half_written(name: str) -> bool:
    # Two dots are before a name of which one file became the other before it was given.
    return bool(re.fullmatch(rf"\.+({_OURS})(\.[^/]*)?\.part", name))


def told_of(place: Place, name: str) -> dict[str, Any]:
    """Size and checksum of a file of ours, as a manifest has them."""
    return {"file": name, "bytes": place.size(name), "crc32": _crc32(place, name)}
