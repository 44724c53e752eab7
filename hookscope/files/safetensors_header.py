"""The header of a safetensors file: eight bytes with its length, then a table in JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any

from hookscope.files.strict_json import parse_table

HEADER_LIMIT = 100_000_000  # bytes; safetensors itself refuses a longer header
METADATA = "__metadata__"  # the entry that is not a tensor


def header_of(path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the offset of its data."""
    with open(path, "rb") as file:
        return header_in(file)


def header_in(
    file: IO[bytes], object_pairs_hook: Callable[[Any], Any] | None = None
) -> tuple[dict[str, Any], int]:
    """Return the same for a file that is open at its beginning; ValueError says what is wrong."""
    length = int.from_bytes(file.read(8), "little")
    data = file.read(length) if 2 <= length <= HEADER_LIMIT else b""
    if len(data) < max(length, 2):
        raise ValueError("its header is cut off")
    try:
        table = parse_table(data, object_pairs_hook)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is not valid JSON") from error
    if not isinstance(table, dict):
        raise ValueError("its header is not a table")
    return table, 8 + length


def header_bytes(text: bytes, length: int = 0) -> bytes:
    """Return the beginning of a file whose header is this JSON.

    Spaces fill it to ``length`` bytes, or to a multiple of eight, so that the values are aligned.
    """
    length = length or len(text) + -len(text) % 8
    return length.to_bytes(8, "little") + text.ljust(length)
