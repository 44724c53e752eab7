"""The words behind ``--input``: files, folders, globs and ``-``, made into a list of files.

Torch-free, so that a wrong word is reported before anything heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from hookscope.errors import InputError
from hookscope.suggest import did_you_mean

STDIN = "-"
NO_IMAGE = "no image is given"
IMAGE_CHOICES = ("preprocess", "size", "mean", "std")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def expand(words: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the files that ``words`` name, in the order given; ``-`` (standard input) stays ``-``.

    A folder stands for the images in it (by their suffix, in order of name, not in its folders). A
    word that exists is taken as it is even if it contains ``*``, ``?`` or ``[``; otherwise these
    make it a glob, whose matches come in order of name and where ``**`` crosses folders.

    Raises:
        InputError: a file is missing, empty or unreadable, a folder holds no image, a glob matches
            nothing, or ``-`` stands there twice.
    """
    files = [file for word in words for file in _expand_one(os.fspath(word))]
    if files.count(STDIN) > 1:
        raise InputError("Standard input can be read only once.", "Give '-' a single time.")
    return files


def refuse_unused(choices: Mapping[str, Any], why: str) -> None:
    """Refuse choices for images that would change nothing, rather than pass over them in silence.

    Args:
        choices: what was given for ``preprocess``, ``size``, ``mean`` and ``std``; other keys do
            not count.
        why: there is no image.
    """
    unused = [f"--{name}" for name in IMAGE_CHOICES if choices.get(name) is not None]
    if unused:
        are, them = ("is", "it") if len(unused) == 1 else ("are", "them")
        raise InputError(
            f"{' and '.join(unused)} {are} for images, and {why}.",
            f"Leave {them} out, or give --input.",
        )


def _expand_one(word: str) -> Sequence[str]:
    if word == STDIN:
        return [word]
    if not word:
        raise InputError("An empty word names no input.", "Give a file, a folder, a glob or '-'.")
    path = os.path.expanduser(word)
    if os.path.isdir(path):
        return _images_in(path)
    if os.path.lexists(path) or not has_magic(path):
        return [_check(path)]
    found = sorted(file for file in glob(path, recursive=True) if os.path.isfile(file))
    if not found:
        raise InputError(f"No file matches {word!r}.", "Check the folder and the pattern.")
    return [_check(file) for file in found]


def _images_in(folder: str) -> Sequence[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as exc:
        raise InputError(f"The folder {folder!r} cannot be read: {exc.strerror}.") from exc
    found = [os.path.join(folder, name) for name in names if name.lower().endswith(SUFFIXES)]
    images = [file for file in found if os.path.isfile(file)]
    if not images:
        known = " ".join(SUFFIXES)
        raise InputError(f"The folder {folder!r} holds no image.", f"Looked for {known} in it.")
    return [_check(file) for file in images]


def _check(file: str) -> str:
    path = Path(file)
    if not path.exists():
        raise InputError(f"There is no file {file!r}.", _near_file(path))
    if path.is_file() and not path.stat().st_size:  # a pipe has no size and may still be read
        raise InputError(f"The file {file!r} is empty.", "Write or download it again.")
    if not os.access(file, os.R_OK):
        raise InputError(f"The file {file!r} may not be read.", "Check its permissions.")
    return file


def _near_file(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return f"There is no folder {str(path.parent)!r} either."
    return did_you_mean(path.name, names) or "Check the name and the folder."
