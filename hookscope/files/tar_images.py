"""The images in a tar archive, and the labels beside them in the form of WebDataset.

The files of one sample have the same name up to the first dot: ``7.jpg``, ``7.cls``, ``7.json``.
Nothing is unpacked, so names in an archive are harmless.
"""

from __future__ import annotations

import json
import logging
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from hookscope.errors import InputError, cause
from hookscope.files.input_files import IMAGE_SUFFIXES, LABEL, PATH, RESERVED, Columns

log = logging.getLogger("hookscope")

# The columns of the texts in a sample. A ``.json`` file has several.
_COLUMNS = {"cls": LABEL, "txt": "text", "json": ""}
_LONGEST = 1 << 16  # bytes of a label


@dataclass(frozen=True, slots=True)
class TarImage:
    """An image: its name, its first byte in the archive, its size, and its columns."""

    name: str
    start: int
    size: int
    columns: Columns = ()


def tar_images(path: str) -> Iterator[TarImage]:
    """Yield the images of an archive in stored order, each with the labels of its sample.

    ``.cls`` is the column ``label``, ``.txt`` the column ``text``. Of an object in ``.json`` the
    texts, numbers, true and false are columns.
    """
    try:
        with tarfile.open(path, "r:") as archive, open(path, "rb") as file:
            members = _Members(file)
            members.read(archive)
            # tarfile stops silently at anything that is not a header, such as damage; zeros end an
            # archive.
            file.seek(archive.offset)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"it is cut off or damaged at byte {archive.offset}")
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"{path!r} cannot be read as a tar archive: {cause(error)}.",
            "Give a complete .tar file that is not compressed.",
        ) from error
    members.warn_of_left_out(path)
    if not members.images:
        known = " ".join(IMAGE_SUFFIXES)
        raise InputError(
            f"The archive {path!r} contains no images.", f"Only {known} files in it are read."
        )
    for name, (start, size) in members.images:
        yield TarImage(name, start, size, members.columns(name))


class _Members:
    """The images and labels of an archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self.images: list[tuple[str, tuple[int, int]]] = []
        self._file = file
        self._left_out: list[str] = []  # images without bytes
        self._unread: list[tuple[str, str]] = []  # labels, each with the reason
        self._labels: dict[str, dict[str, str]] = {}  # by sample

    def read(self, archive: tarfile.TarFile) -> None:
        """Read all headers, and the labels."""
        places: dict[str, tuple[int, int]] = {}
        before = -1
        while (member := _next(archive)) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # a kilobyte each
            # With a damaged size tarfile returns to an earlier position, and would loop forever.
            if member.size < 0 or member.offset <= before:
                raise tarfile.ReadError(f"it is damaged at byte {max(before, 0)}")
            before = member.offset
            name = member.name
            plain = member.isfile() and not member.issparse()
            if not member.isdir() and name.lower().endswith(IMAGE_SUFFIXES):
                if member.islnk() and member.linkname in places:  # as tar stores a repeated file
                    self.images.append((name, places[member.linkname]))
                elif plain:
                    places[name] = member.offset_data, member.size
                    self.images.append((name, places[name]))
                else:
                    self._left_out.append(name)
            elif plain and _sample(name)[1] in _COLUMNS:
                self._read_label(member)

    def columns(self, image: str) -> Columns:
        """Return the columns of the sample that an image belongs to."""
        return tuple(self._labels.get(_sample(image)[0], {}).items())

    def warn_of_left_out(self, path: str) -> None:
        """Warn of images and labels that were left out."""
        if self._left_out:
            log.warning(
                "%s: skipped %d images that are links, devices or sparse files in the archive, the"
                " first being %r",
                *(path, len(self._left_out), self._left_out[0]),
            )
        if self._unread:
            log.warning(
                "%s: left out the labels in %d files, the first being %r, which %s",
                *(path, len(self._unread), *self._unread[0]),
            )

    def _read_label(self, member: tarfile.TarInfo) -> None:
        sample, kind = _sample(member.name)
        if member.size > _LONGEST:
            self._unread.append((member.name, f"has more than {_LONGEST:,} bytes"))
            return
        self._file.seek(member.offset_data)
        try:
            text = self._file.read(member.size).decode().strip()
            found = _fields(json.loads(text)) if kind == "json" else {_COLUMNS[kind]: text}
        except (ValueError, RecursionError):
            self._unread.append((member.name, f"is not {'JSON' if kind == 'json' else 'UTF-8'}"))
            return
        labels = self._labels.get(sample, {})
        # A file of its own comes before a field of the same name.
        self._labels[sample] = found | labels if kind == "json" else labels | found


def _sample(name: str) -> tuple[str, str]:
    """The name of the sample that a member belongs to, and the rest of the member's name.

    >>> _sample("train/a.b/7.seg.png")
    ('train/a.b/7', 'seg.png')
    """
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _fields(document: Any) -> dict[str, str]:
    """The columns in a JSON object: its texts, numbers, true and false, as texts."""
    if not isinstance(document, dict):
        return {}
    plain = {k: v for k, v in document.items() if isinstance(v, str | int | float)}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
        if name and name != PATH and name not in RESERVED
    }


def _next(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    """Return the next member. A damaged size makes tarfile raise many kinds of errors."""
    try:
        return archive.next()
    except (MemoryError, OverflowError, RecursionError, ValueError) as error:
        raise tarfile.ReadError(f"a size in it is damaged near byte {archive.offset}") from error
