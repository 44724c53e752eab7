"""A check of what an archive says of the lines that its code was compiled from.

PyTorch's reader trusts these records: a damaged one makes it take gigabytes of memory, or read
memory that is not its own.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

from hookscope.errors import ModelError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import LONGEST_PICKLE, DamagedPickle
from hookscope.files.plain_pickle import OpaqueObject, PlainUnpickler

_WITH_TEXTS = "FORMAT_WITH_STRING_TABLE"
_MOST = 1 << 31  # lines, and characters of a source


def check_debug_records(path: str) -> None:
    """Raise ModelError if a record of source lines is damaged."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".debug_pkl"):
                continue
            with archive.open(name) as record:
                data = record.read(LONGEST_PICKLE + 1)
            if len(data) > LONGEST_PICKLE or not _is_valid(data):
                raise ModelError(
                    f"{path!r} is damaged: its record {name!r} of source lines is not valid.",
                    WRITE_AGAIN,
                )


def _is_valid(data: bytes) -> bool:
    try:
        content = PlainUnpickler(io.BytesIO(data)).load()
    except DamagedPickle:
        return False
    texts: Any = None
    if isinstance(content, tuple) and content and isinstance(content[0], str):
        if len(content) != 3 or content[0] != _WITH_TEXTS:
            return False
        _, texts, content = content
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            return False
    return isinstance(content, tuple) and all(_is_entry(entry, texts) for entry in content)


def _is_entry(entry: Any, texts: tuple[str, ...] | None) -> bool:
    """Whether this is an offset in the code and its place in the source."""
    if not isinstance(entry, tuple) or len(entry) not in (2, 3) or not _are_numbers(entry[:1]):
        return False
    place = entry[1]
    if not isinstance(place, tuple) or len(place) != 3 or not _are_numbers(place[1:]):
        return False
    return texts is None or _is_source(place[0], len(texts))


def _is_source(source: Any, texts: int) -> bool:
    """Whether a source is made of texts that exist: their numbers, that of its file, a line."""
    if not isinstance(source, tuple) or len(source) != 3 or not isinstance(source[0], OpaqueObject):
        return False
    if source[0].name != "torch.jit._pickle.build_intlist":
        return False
    pieces = source[0].arguments[0] if source[0].arguments else None
    return (
        isinstance(pieces, list)
        and _are_numbers((*pieces, *source[1:]))
        and all(number < texts for number in (*pieces, *((source[1],) if pieces else ())))
    )


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)
