"""The beginning of a file of results: what it tells, and where each tensor lies. Without torch."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from hookscope.errors import ResultsFileError, cause
from hookscope.files.detect import ARRAY, ARRAYS, describe_file
from hookscope.specs.output_path import MARK, header_of, holds_features

SCHEMA = 1
_OF_FEATURES = {"rows", "keys"}  # what shards and what is fitted to them tell
PAIRS = "pairs of reals"  # how complex32 and complex128 are stored, in a last dimension of two


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the file: its dtype as the format names it, and its first byte."""

    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Header:
    """What a file begins with.

    Attributes:
        info: what hookscope wrote beside the tensors, without what the next two came from.
        places: where each tensor lies, by key.
        pairs: keys of complex tensors that are stored as pairs of reals.
    """

    info: dict[str, Any]
    places: dict[str, Place]
    pairs: frozenset[str]


def read_header(path: str | os.PathLike[str]) -> Header:
    """Return the header of a file that hookscope wrote, whatever the size of its tensors.

    Raises:
        ResultsFileError: there is no such file, it is no safetensors file or not all of one,
            hookscope did not write it, its metadata is damaged, or it is part of a folder.
    """
    try:
        # It holds the header against itself and against the file's length before it lets go.
        with safetensors.safe_open(path, framework="numpy"):
            pass
        table, start = header_of(path)
    except (OSError, safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise cannot_read(path, error) from error
    text = (table.pop("__metadata__", None) or {}).get(MARK)
    if text is None:
        raise ResultsFileError(
            f"{path} holds tensors, but hookscope did not write it.",
            "Open it with safetensors.safe_open, or make a capture with 'hookscope capture'.",
        )
    info = _info(path, text)
    if "records" not in info and _OF_FEATURES & set(info):
        raise _part_of_features(path)
    places = {
        key: Place(told["dtype"], tuple(told["shape"]), start + told["data_offsets"][0])
        for key, told in table.items()
    }
    notes = info.pop("stored_as", {})
    pairs = frozenset(key for key, note in notes.items() if str(note).startswith(PAIRS))
    if not all(key in places and _holds_pairs(places[key]) for key in pairs):
        raise _damaged(path)
    return Header(info, places, pairs)


def _holds_pairs(place: Place) -> bool:
    return place.dtype in ("F16", "F32", "F64") and place.shape[-1:] == (2,)


def _damaged(path: str | os.PathLike[str]) -> ResultsFileError:
    return ResultsFileError(f"Cannot read {path}: its metadata is damaged.", "Record it again.")


def _part_of_features(path: str | os.PathLike[str]) -> ResultsFileError:
    folder = shlex.quote(f"{os.path.dirname(path) or '.'}/")
    return ResultsFileError(
        f"{path} is a part of a folder of features, which is read as a whole.",
        f"'hookscope show {folder}' tells what it holds, 'hookscope export {folder}' makes one"
        " file of it.",
    )


def cannot_read(path: str | os.PathLike[str], error: Exception) -> ResultsFileError:
    """Return the error for a file that is missing, or that safetensors cannot make sense of."""
    if holds_features(path):
        return ResultsFileError(
            f"Cannot read {path}: it is a folder of features, and a file is wanted.",
            f"Make a file of it: hookscope export {shlex.quote(os.fspath(path))}",
        )
    if Path(path).is_file() and (kind := describe_file(os.fspath(path))[0]) in (ARRAY, ARRAYS):
        return ResultsFileError(
            f"Cannot read {path}: it holds {kind}, without statistics or metadata.",
            "Open it with numpy.load, or write a .safetensors file, which this command reads.",
        )
    reason = "it is a folder" if Path(path).is_dir() else cause(error)
    return ResultsFileError(
        f"Cannot read {path}: {reason}.",
        "Give a file that 'hookscope capture' or 'hookscope grads' wrote.",
    )


def _info(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or not isinstance(info.get("stored_as", {}), dict):
        raise _damaged(path)
    schema = info.pop("schema", None)
    if schema != SCHEMA:
        raise ResultsFileError(
            f"{path} has schema {schema!r}, and this hookscope reads schema {SCHEMA}.",
            "Upgrade hookscope, or record the file again.",
        )
    return info
