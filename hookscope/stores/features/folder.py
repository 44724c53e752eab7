"""The folder of results of a dataset: the names of its files, and whether it may be written to.

Rows are in shards, described by a manifest, an index and a table of inputs. During the run
``.parts`` has the entries of the finished shards.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from hookscope.errors import RequestError, ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.output_path import FEATURES_INDEX
from hookscope.files.shell_words import join_words
from hookscope.stores.features.location import Location

MANIFEST = "manifest.json"
INDEX = FEATURES_INDEX
INPUTS = "inputs.jsonl"
STATISTICS = "statistics.safetensors"  # of all rows, if no rows are stored
STATISTICS_ONLY = "statistics"  # the manifest's name of that reduction
FITTED = "pca.safetensors"  # the components on which rows are projected
PARTS = ".parts/"
PLAN = f"{PARTS}plan.json"  # the settings of the run, written before the first shard
FIT = f"{PARTS}fitted.json"  # size and checksum of FITTED
SCHEMA = 2  # of a manifest; since 2 each JSON file in the folder has its own checksum
CHECKSUM = "checksum"  # the key of a JSON file's own CRC-32
_SHARD = r"rows-\d{8,}\.safetensors"
# Only the outermost keys follow a single space, and no string contains a line end.
_CHECKSUM_LINE = re.compile(rb'\n "checksum": "([^"\n]*)"')
_BLANK = "0" * 8
_OWN_NAMES = "|".join((_SHARD, *map(re.escape, (MANIFEST, INDEX, INPUTS, STATISTICS, FITTED))))
# Distinctive names, by which a folder of results is recognized.
_SIGNATURES = "|".join((_SHARD, re.escape(INDEX), rf"{re.escape(PARTS)}.*"))
_FILE_SUFFIXES = (".safetensors", ".npy", ".npz", ".parquet")


def is_row_file_name(name: str) -> bool:
    """Whether this is the name of a shard, or of the file of statistics."""
    return name == STATISTICS or re.fullmatch(_SHARD, name) is not None


def shard_name(first: int) -> str:
    """Return the name of the shard whose first row is ``first``."""
    return f"rows-{first:08d}.safetensors"


def slice_key(key: str, first: int, last: int) -> str:
    """Return the name of a tensor's rows from ``first`` up to, but not including, ``last``."""
    return f"{key}[{first}:{last}]"


def read_json(location: Location, name: str, *, old: bool = False) -> Any:
    """Return the content of a JSON file without its checksum; None if it is missing."""
    if location.size(name) is None:
        return None
    try:
        with location.open(name) as file:
            data = file.read()
        value = strict_json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise damaged_file_error(location, name, cause(error)) from error
    if value is None:
        raise damaged_file_error(location, name, "it is empty")
    checksum = value.pop(CHECKSUM, None) if isinstance(value, dict) else None
    if checksum is None and old and not (isinstance(value, dict) and value.get("schema") == SCHEMA):
        return value
    if checksum != _own_checksum(data):
        raise damaged_file_error(location, name, "its checksum does not match its bytes")
    return value


def damaged_file_error(location: Location, name: str, reason: str) -> ResultsFileError:
    """Return the error for a damaged file of the folder."""
    return ResultsFileError(
        f"Cannot read {name} in {location}: {reason}.",
        "Run the command that wrote the folder again with --resume to rewrite it.",
    )


def write_json(location: Location, name: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file with its checksum; the same value gives the same bytes."""
    text = strict_json.dumps({**value, CHECKSUM: _BLANK}, sort_keys=True, indent=1, surrogates=True)
    data = f"{text}\n".encode()
    location.write(name, _CHECKSUM_LINE.sub(_checksum_line(_own_checksum(data)), data))


def _checksum_line(checksum: str) -> bytes:
    return f'\n "{CHECKSUM}": "{checksum}"'.encode()


def _own_checksum(data: bytes) -> str:
    """CRC-32 of the bytes of a JSON file, with its checksum's digits replaced by zeros."""
    blank = _CHECKSUM_LINE.sub(_checksum_line(_BLANK), data)
    return f"{zlib.crc32(blank):08x}"


def is_intact(location: Location, entry: FileEntry) -> bool:
    """Whether a file, and no link out of the folder, has the size and checksum of its entry."""
    try:
        if location.size(entry["file"]) != entry["bytes"]:
            return False
    except ResultsFileError:
        return False
    return _crc32(location, entry["file"]) == str(entry["crc32"])


def crc32_in(file: BinaryIO) -> str:
    """Return the CRC-32 of the rest of ``file``, in hexadecimal: it detects damage, not forgery."""
    checksum = 0
    while chunk := file.read(1 << 20):
        checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def _crc32(location: Location, name: str) -> str:
    with location.open(name) as file:
        return crc32_in(file)


def check_folder(location: Location, *, resume: bool, force: bool) -> None:
    """Check that results can be written to a folder."""
    if resume and force:
        raise RequestError(
            "--resume and --force cannot be used together.",
            "Use --resume to continue the earlier run, or --force to start over.",
        )
    if Path(location.address).suffix.lower() in _FILE_SUFFIXES:
        raise RequestError(
            f"{location} has the name of a file, but the results are a folder.",
            "Extract into a folder: -o features/. Then write one file:"
            f" hookscope export features/ --layer LAYER -o {join_words([str(location)])}",
        )
    location.check_writable()
    names = location.names()
    if names and not any(re.fullmatch(_SIGNATURES, name) for name in names):
        raise RequestError(
            f"The folder {location} contains other files than results of hookscope: {names[0]}.",
            "Give an empty folder or a new one.",
        )
    if names and not (resume or force):
        if MANIFEST in names:
            raise RequestError(
                f"The folder {location} is complete: it contains the results of a finished run.",
                "Name another folder, or add --force to start over. (--resume only repairs it.)",
            )
        raise RequestError(
            f"The folder {location} contains the results of an interrupted run.",
            "Add --resume to continue the same command, or --force to start over.",
        )


def clear_folder(location: Location) -> None:
    """Remove the files that hookscope wrote to a folder, and no others."""
    # The files by which the folder is recognized go last: if the process is killed before that,
    # the same command can be run again.
    for name in sorted(location.names(), key=(PLAN, INDEX).__contains__):
        if re.fullmatch(_OWN_NAMES, name) or name.startswith(PARTS) or _is_partial(name):
            location.remove(name)


def remove_partial_files(location: Location) -> None:
    """Remove unfinished files of killed processes, and links, whose targets would be written."""
    for name in filter(_is_partial, location.names()):
        location.remove(name)


def remove_stray_files(location: Location, kept: Collection[str]) -> None:
    """Remove shards that are not in ``kept``, the entries in ``.parts``, and unfinished files."""
    for name in location.names():
        stray = re.fullmatch(_SHARD, name) and name not in kept
        if stray or name.startswith(PARTS) or _is_partial(name):
            location.remove(name)


def _is_partial(name: str) -> bool:
    # A name begins with two dots if a scratch file was itself written through a scratch file.
    return bool(re.fullmatch(rf"\.+({_OWN_NAMES})(\.[^/]*)?\.part(/[^/]*)?", name))


def file_entry(location: Location, name: str) -> FileEntry:
    """The manifest's entry of a file: name, size and checksum."""
    return {"file": name, "bytes": location.size(name) or 0, "crc32": _crc32(location, name)}


class FileEntry(TypedDict):
    """A file as it was written."""

    file: str
    bytes: int
    crc32: str
