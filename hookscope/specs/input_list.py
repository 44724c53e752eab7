"""The inputs of a dataset in order: files in folders, by globs, from a list, in tar archives.

Torch-free. In an archive, as WebDataset makes them, the images count, in the order in which they
are stored; what else belongs to a sample (labels, captions) is passed over.
"""

from __future__ import annotations

import logging
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hookscope.errors import InputError, cause
from hookscope.specs.input_files import IMAGE_SUFFIXES, list_files
from hookscope.specs.suggestions import did_you_mean

log = logging.getLogger("hookscope")

LIST = "@"
_INSIDE = "::"
_ARCHIVE = ".tar"
# Bytes of one file. The largest image that is decoded takes 1.5 GB where it is not compressed.
_MOST = 2 * 10**9


@dataclass(frozen=True, slots=True)  # of which there may be millions
class InputEntry:
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
            size = os.path.getsize(self.path) if self.size is None else self.size
            if size > _MOST:  # which may be a hole that takes no room on the disk
                raise InputError(
                    f"{self.name!r} has {size:,} bytes, and an image has {_MOST:,} at most.",
                    "Scale it down, or leave it out.",
                )
            with open(self.path, "rb") as file:
                file.seek(self.start)
                data = file.read(-1 if self.size is None else self.size)
        except OSError as error:
            raise InputError(f"{self.name!r} cannot be read: {error.strerror}.") from error
        if len(data) < (self.size or 1):
            raise InputError(f"{self.name!r} is empty or cut off.", "Write or download it again.")
        return data


def list_entries(words: Iterable[str], *, skip_bad: bool = False) -> list[InputEntry]:
    """Return the inputs that ``words`` name, in order.

    Args:
        words: files, folders, globs, lists, archives.
        skip_bad: let a file that is missing, and that a line of a list names, be an input like
            others, which cannot be used.

    Raises:
        InputError: a file is missing or of another kind, or there is none.
    """
    found: list[InputEntry] = []
    for word in words:
        there = not (skip_bad and _is_list(word))
        for each in _listed(word):
            if each.lower().endswith(_ARCHIVE):
                found += _members(each)
            else:
                files = list_files(each, usable=False, there=there)
                found += [InputEntry(file, file) for file in files]
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


def _members(path: str) -> Iterator[InputEntry]:
    """The images in an archive: nothing is unpacked, so a name in it leads nowhere."""
    try:
        with tarfile.open(path, "r:") as archive:  # without compression, so that parts can be read
            found, left_out = _images_in(archive)
            end = archive.offset
        # tarfile ends without a word where something else follows than the end's zeros.
        with open(path, "rb") as file:
            file.seek(end)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"it is cut off or damaged at byte {end}")
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"{path!r} cannot be read as a tar archive: {cause(error)}.",
            "Name a whole .tar that is not compressed.",
        ) from error
    if left_out:
        log.warning(
            "%s: %d members with the name of an image are left out, since they are links or devices"
            " or stored with holes; the first is %r",
            *(path, len(left_out), left_out[0]),
        )
    if not found:
        known = " ".join(IMAGE_SUFFIXES)
        raise InputError(f"The archive {path!r} holds no image.", f"Looked for {known} in it.")
    for name, start, size in found:
        yield InputEntry(f"{path}{_INSIDE}{name}", path, start, size)


def _images_in(archive: tarfile.TarFile) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Name, first byte and size of each image, and the names of those whose bytes are not there.

    A hard link to an image before it, as ``tar`` stores a file that it has met, is that image.
    """
    places: dict[str, tuple[int, int]] = {}
    found: list[tuple[str, int, int]] = []
    left_out: list[str] = []
    before = -1
    while (member := _next(archive)) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # a kilobyte each
        # A damaged size leads back to where tarfile has been, and round and round.
        if member.size < 0 or member.offset <= before:
            raise tarfile.ReadError(f"it is damaged at byte {max(before, 0)}")
        before = member.offset
        if member.isdir() or not member.name.lower().endswith(IMAGE_SUFFIXES):
            continue
        if member.islnk() and member.linkname in places:
            found.append((member.name, *places[member.linkname]))
        elif member.isfile() and not member.issparse():
            places[member.name] = member.offset_data, member.size
            found.append((member.name, *places[member.name]))
        else:
            left_out.append(member.name)
    return found, left_out


def _next(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    """The next member; a size in a header that is damaged makes tarfile raise nearly anything."""
    try:
        return archive.next()
    except (MemoryError, OverflowError, RecursionError, ValueError) as error:
        raise tarfile.ReadError(f"a size in it is damaged near byte {archive.offset}") from error
