"""The inputs of a dataset in order: files in folders, by globs, from a list, in tar archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hookscope.errors import InputError
from hookscope.inputs import images
from hookscope.inputs.words import expand

LIST = "@"


def list_files(words: Sequence[str]) -> list[str]:
    """Return the files that ``words`` name, in order; ``@FILE`` names a list, one on a line.

    Raises:
        InputError: a file is missing, or there is none.
    """
    return expand([file for word in words for file in _unlisted(word)])


def _unlisted(word: str) -> list[str]:
    if not word.startswith(LIST) or os.path.exists(word):
        return [word]
    try:
        with open(word[1:], encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The list {word[1:]!r} cannot be read: {error}.") from error


def reader_of(files: Sequence[str]) -> Callable[[str], bytes]:
    """Return what reads the bytes of one of ``files``."""
    return images.read_bytes
