"""The inputs of a dataset in order: files in folders, by globs, from a list, in tar archives.

Torch-free. In an archive, as WebDataset makes them, the images count, in the order in which they
are stored; what else belongs to a sample (labels, captions) is passed over.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hookscope.errors import InputError
from hookscope.inputs.files import IMAGE_SUFFIXES, files_of
from hookscope.suggest import did_you_mean

LIST = "@"
_INSIDE = "::"
_ARCHIVE = ".tar"


@dataclass(frozen=True, slots=True)  # of which there may be millions
class Entry:
    """One input: a file, or ``size`` bytes from ``start`` on in an archive.

    ``name`` is what the table of inputs calls it: the path, or ``ARCHIVE::MEMBER``.
    """

    name: str
    path: str
    start: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            InputError: it cannot be read, or not all of it.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                data = file.read(-1 if self.size is None else self.size)
        except OSError as error:
            raise InputError(f"{self.name!r} cannot be read: {error.strerror}.") from error
        if len(data) < (self.size or 1):
            raise InputError(f"{self.name!r} is empty or cut off.", "Write or download it again.")
        return data


def list_entries(words: Iterable[str], *, skip_bad: bool = False) -> list[Entry]:
    """Return the inputs that ``words`` name, in order.

    Args:
        words: files, folders, globs, lists, archives.
        skip_bad: let a file that is missing, and that a line of a list names, be an input like
            others, which cannot be used.

    Raises:
        InputError: a file is missing or of another kind, or there is none.
    """
    found: list[Entry] = []
    for word in words:
        there = not (skip_bad and _is_list(word))
        for each in _listed(word):
            if each.lower().endswith(_ARCHIVE):
                found += _members(each)
            else:
                files = files_of(each, usable=False, there=there)
                found += [Entry(file, file) for file in files]
    if not found:
        raise InputError("There is no input.", "Name a folder of images with --input.")
    return found


def is_listing(word: str) -> bool:
    """Whether a word names inputs in a way that is for datasets alone: a list or an archive.

    >>> is_listing("@photos.txt"), is_listing("photos.tar"), is_listing("photos/")
    (True, True, False)
    """
    return _is_list(word) or word.lower().endswith(_ARCHIVE)


def _is_list(word: str) -> bool:
    return word.startswith(LIST) and not os.path.exists(word)


def _listed(word: str) -> list[str]:
    """The words in the list that ``@FILE`` names; any other word alone."""
    if not _is_list(word):
        return [word]
    path = word[len(LIST) :]
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        folder = os.path.dirname(path) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        raise InputError(
            f"The list {path!r} cannot be read: {error.strerror}.",
            did_you_mean(os.path.basename(path), names) or "Check the name and the folder.",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"The list {path!r} is no text.", "Write one file on each line, in UTF-8."
        ) from error
    return [line for line in lines if line]


def _members(path: str) -> Iterator[Entry]:
    try:
        with tarfile.open(path, "r:") as archive:  # without compression, so that parts can be read
            members = [m for m in archive if m.isfile()]
        # tarfile ends without a word where something else follows than the end's zeros.
        with open(path, "rb") as file:
            file.seek(archive.offset)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"it is cut off or damaged at byte {archive.offset}")
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"{path!r} cannot be read as a tar archive: {error}.",
            "Name a whole .tar that is not compressed.",
        ) from error
    images = [m for m in members if m.name.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        known = " ".join(IMAGE_SUFFIXES)
        raise InputError(f"The archive {path!r} holds no image.", f"Looked for {known} in it.")
    for member in images:
        yield Entry(f"{path}{_INSIDE}{member.name}", path, member.offset_data, member.size)
