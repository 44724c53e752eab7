"""The inputs of a dataset in order: files in folders, from globs, from a list, in tar archives.

Torch-free. Of an archive in the form of WebDataset the images are used, in stored order; labels,
captions and other parts of a sample are ignored.
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
# Bytes of one file. The largest image that is decoded takes 1.5 GB uncompressed.
_MOST = 2 * 10**9


@dataclass(frozen=True, slots=True)  # there may be millions of them
class InputEntry:
    """One input: a file, or ``size`` bytes of an archive from ``start``.

    ``name`` is its name in the table of inputs: the path, or ``ARCHIVE::MEMBER``.
    """

    name: str
    path: str
    start: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            InputError: it cannot be read, or not all of it.
        """
        try:
            size = os.path.getsize(self.path) if self.size is None else self.size
            if size > _MOST:  # a sparse file may be larger than the disk
                raise InputError(
                    f"{self.name!r} has {size:,} bytes, and the limit for an image is {_MOST:,}.",
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


def list_entries(specs: Iterable[str], *, skip_bad: bool = False) -> list[InputEntry]:
    """Return the inputs that ``specs`` stand for, in order.

    Args:
        specs: files, folders, globs, lists, archives.
        skip_bad: take a missing file of a list as an input that cannot be used.

    Raises:
        InputError: a file is missing or of another kind, or there is none.
    """
    found: list[InputEntry] = []
    for spec in specs:
        there = not (skip_bad and _is_list(spec))
        for each in _listed(spec):
            if each.lower().endswith(_ARCHIVE):
                found += _members(each)
            else:
                files = list_files(each, usable=False, there=there)
                found += [InputEntry(file, file) for file in files]
    if not found:
        raise InputError("There is no input.", "Name a folder of images with --input.")
    return found


def is_listing(spec: str) -> bool:
    """Whether a spec is a list or an archive, which only datasets can have.

    >>> is_listing("@photos.txt"), is_listing("photos.tar"), is_listing("photos/")
    (True, True, False)
    """
    return _is_list(spec) or spec.lower().endswith(_ARCHIVE)


def _is_list(spec: str) -> bool:
    return spec.startswith(LIST) and not os.path.exists(spec)


def _listed(spec: str) -> list[str]:
    """Return the lines of the list ``@FILE``; of any other spec the spec itself."""
    if not _is_list(spec):
        return [spec]
    path = spec[len(LIST) :]
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
            f"The list {path!r} is not a text file.", "Write one file on each line, in UTF-8."
        ) from error
    return [line for line in lines if line]


def _members(path: str) -> Iterator[InputEntry]:
    """Yield the images in an archive. Nothing is unpacked, so names in it are harmless."""
    try:
        with tarfile.open(path, "r:") as archive:  # uncompressed, so that parts can be read
            found, left_out = _images_in(archive)
            end = archive.offset
        # tarfile stops silently at anything that is not a header, such as damage; zeros end an
        # archive.
        with open(path, "rb") as file:
            file.seek(end)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"it is cut off or damaged at byte {end}")
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"{path!r} cannot be read as a tar archive: {cause(error)}.",
            "Give a complete .tar file that is not compressed.",
        ) from error
    if left_out:
        log.warning(
            "%s: skipped %d images that are links, devices or sparse files in the archive, the"
            " first being %r",
            *(path, len(left_out), left_out[0]),
        )
    if not found:
        known = " ".join(IMAGE_SUFFIXES)
        raise InputError(
            f"The archive {path!r} contains no images.", f"Only {known} files in it are read."
        )
    for name, start, size in found:
        yield InputEntry(f"{path}{_INSIDE}{name}", path, start, size)


def _images_in(archive: tarfile.TarFile) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Return name, first byte and size of each image, and the names of images without bytes.

    A hard link to an earlier image, as ``tar`` stores a repeated file, is that image.
    """
    places: dict[str, tuple[int, int]] = {}
    found: list[tuple[str, int, int]] = []
    left_out: list[str] = []
    before = -1
    while (member := _next(archive)) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # a kilobyte each
        # With a damaged size tarfile returns to an earlier position, and would loop forever.
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
    """Return the next member. A damaged size makes tarfile raise many kinds of errors."""
    try:
        return archive.next()
    except (MemoryError, OverflowError, RecursionError, ValueError) as error:
        raise tarfile.ReadError(f"a size in it is damaged near byte {archive.offset}") from error
