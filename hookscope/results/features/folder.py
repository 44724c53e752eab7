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
from pathlib import Path
from typing import Any, BinaryIO

from hookscope.errors import RequestError, ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.results.features.location import Location

MANIFEST = "manifest.json"
INDEX = "features.safetensors.index.json"
INPUTS = "inputs.jsonl"
STATISTICS = "statistics.safetensors"  # of all rows, where no row is kept
STATISTICS_ONLY = "statistics"  # what the manifest calls that way of reducing
FITTED = "pca.safetensors"  # what rows are projected with, where they are
PARTS = ".parts/"
PLAN = f"{PARTS}plan.json"  # what the run does, which is told before the first shard
FIT = f"{PARTS}fitted.json"  # size and checksum of what was fitted
SCHEMA = 2  # of a manifest; since 2 each JSON file in the folder has a checksum of itself
CHECKSUM = "checksum"  # the key of a JSON file's own CRC-32
_SHARD = r"rows-\d{8,}\.safetensors"
# Outermost keys alone stand behind one space, and no string holds a line end.
_CHECKSUM_LINE = re.compile(rb'\n "checksum": "([^"\n]*)"')
_BLANK = "0" * 8
_OURS = "|".join((_SHARD, *map(re.escape, (MANIFEST, INDEX, INPUTS, STATISTICS, FITTED))))
# Names that nobody else would choose: they tell a folder of results from another.
_SIGNS = "|".join((_SHARD, re.escape(INDEX), rf"{re.escape(PARTS)}.*"))


def is_row_file_name(name: str) -> bool:
    """Whether a run gives this name to a file of rows, or of statistics of them."""
    return name == STATISTICS or re.fullmatch(_SHARD, name) is not None


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


def read_json(place: Location, name: str, *, old: bool = False) -> Any:
    """Return what a JSON file of ours holds, without its checksum; None if there is no such file.

    Args:
        place: the folder.
        name: of the file.
        old: accept a file without a checksum, as versions before this schema wrote it.

    Raises:
        ResultsFileError: it cannot be read, is not JSON, or its checksum does not match its bytes.
    """
    if place.size(name) is None:
        return None
    try:
        with place.open(name) as file:
            data = file.read()
        value = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged_file_error(place, name, cause(error)) from error
    if value is None:
        raise damaged_file_error(place, name, "it holds nothing")
    told = value.pop(CHECKSUM, None) if isinstance(value, dict) else None
    if told is None and old and not (isinstance(value, dict) and value.get("schema") == SCHEMA):
        return value
    if told != _own_checksum(data):
        raise damaged_file_error(place, name, "its checksum does not match its bytes")
    return value


def damaged_file_error(place: Location, name: str, why: str) -> ResultsFileError:
    """The error for a file of ours that is not as we write it."""
    return ResultsFileError(
        f"Cannot read {name} in {place}: {why}.",
        "The command that wrote the folder makes it again, with --resume.",
    )


def write_json(place: Location, name: str, value: Mapping[str, Any]) -> None:
    """Write a file of ours with its checksum, the same bytes for the same value."""
    text = strict_json.dumps({**value, CHECKSUM: _BLANK}, sort_keys=True, indent=1, surrogates=True)
    data = f"{text}\n".encode()
    place.write(name, _CHECKSUM_LINE.sub(_checksum_line(_own_checksum(data)), data))


def _checksum_line(checksum: str) -> bytes:
    return f'\n "{CHECKSUM}": "{checksum}"'.encode()


def _own_checksum(data: bytes) -> str:
    """CRC-32 of the bytes of a JSON file, with zeros in the place of its checksum's digits."""
    blank = _CHECKSUM_LINE.sub(_checksum_line(_BLANK), data)
    return f"{zlib.crc32(blank):08x}"


def is_intact(place: Location, shard: Mapping[str, Any]) -> bool:
    """Whether a shard is there with the bytes that it had when it was written.

    A link that leads out of the folder is not such a file.
    """
    try:
        if place.size(shard["file"]) != shard["bytes"]:
            return False
    except ResultsFileError:
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


def _crc32(place: Location, name: str) -> str:
    with place.open(name) as file:
        return crc32_in(file)


_FILES = (".safetensors", ".npy", ".npz", ".parquet")


def check_folder(place: Location, *, resume: bool, force: bool) -> None:
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
    if Path(place.word).suffix.lower() in _FILES:
        raise RequestError(
            f"{place} is named like a file, and the results are a folder.",
            "Name a folder, such as features/; 'hookscope export' then writes one file of it.",
        )
    place.check_writable()
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


def clear_folder(place: Location) -> None:
    """Remove from a folder what hookscope wrote there, and nothing else."""
    # What the folder is known by goes last: whoever is killed before that may begin again.
    for name in sorted(place.names(), key=(PLAN, INDEX).__contains__):
        if re.fullmatch(_OURS, name) or name.startswith(PARTS) or _is_half_written(name):
            place.remove(name)


def remove_partial_files(place: Location) -> None:
    """Remove what processes that were killed had half written.

    A link of such a name would be written through.
    """
    for name in filter(_is_half_written, place.names()):
        place.remove(name)


def remove_stray_files(place: Location, kept: Collection[str]) -> None:
    """Remove the shards that are not in ``kept``, and what was known of any while it was made.

    What processes that were killed had half written goes too.
    """
    for name in place.names():
        stray = re.fullmatch(_SHARD, name) and name not in kept
        if stray or name.startswith(PARTS) or _is_half_written(name):
            place.remove(name)


def _is_half_written(name: str) -> bool:
    # Two dots are before a name of which one file became the other before it was given.
    return bool(re.fullmatch(rf"\.+({_OURS})(\.[^/]*)?\.part(/[^/]*)?", name))


def file_entry(place: Location, name: str) -> dict[str, Any]:
    """Size and checksum of a file of ours, as a manifest has them."""
    return {"file": name, "bytes": place.size(name), "crc32": _crc32(place, name)}
