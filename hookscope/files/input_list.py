"""The inputs of a dataset in order: files in folders, from globs, from a list, in tar archives."""

from __future__ import annotations

import csv
import json
import logging
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from hookscope.errors import InputError, cause
from hookscope.files.file_types import check_is_image
from hookscope.files.input_files import (
    IMAGE_SUFFIXES,
    LABEL,
    PATH,
    RESERVED,
    Columns,
    check_file,
    list_files,
)
from hookscope.files.suggestions import did_you_mean

log = logging.getLogger("hookscope")

LIST = "@"
_INSIDE = "::"
_ARCHIVE = ".tar"
# Bytes of one file. The largest image that is decoded takes 1.5 GB uncompressed.
_MOST = 2 * 10**9
_CHECKED_FILES = 64  # of a million files a few show whether they are images
# The columns of the texts in a sample. A ``.json`` file has several.
_COLUMNS = {"cls": LABEL, "txt": "text", "json": ""}
_LONGEST_LABEL = 1 << 16  # bytes of a label


@dataclass(frozen=True, slots=True)  # there may be millions of them
class InputEntry:
    """One input: a file, or ``size`` bytes of an archive from ``start``.

    ``name`` is its name in the table of inputs: the path, or ``ARCHIVE::MEMBER``. ``columns`` are
    names and values that are stored beside it, such as its class.
    """

    name: str
    path: str
    start: int = 0
    size: int | None = None
    columns: Columns = ()

    def read(self) -> bytes:
        """Return the bytes of the file."""
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # reading may not end
                raise InputError(f"{self.name!r} is not a regular file.", "Give a file.")
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
    """Return the inputs that ``specs`` stand for, in order."""
    found: list[InputEntry] = []
    for spec in specs:
        there = not (skip_bad and is_list(spec))
        for each, columns in _listed(spec):
            if each.lower().endswith(_ARCHIVE):
                entries: Iterable[InputEntry] = _archived(each)
            elif classes := class_folders(each):
                entries = _classified(classes)
            else:
                files = list_files(each, usable=False, there=there)
                entries = [InputEntry(file, file) for file in files]
            found += (_with_columns(entry, columns) for entry in entries) if columns else entries
    if not found:
        raise InputError("There is no input.", "Name a folder of images with --input.")
    return found


def check_entries(specs: Iterable[str], *, skip_bad: bool = False) -> None:
    """Check the inputs before torch is imported; lists and archives could take minutes."""
    named = [spec for spec in specs if not is_listing(spec)]
    entries = list_entries(named) if named else []
    if skip_bad:
        return
    for entry in entries:
        check_file(entry.path)
    for entry in entries[:_CHECKED_FILES]:
        check_is_image(entry.path)


def _with_columns(entry: InputEntry, columns: Columns) -> InputEntry:
    """The entry with the columns of a list, which come before those of an archive in it."""
    return replace(entry, columns=tuple((dict(entry.columns) | dict(columns)).items()))


def is_listing(spec: str) -> bool:
    """Whether a spec is a list or an archive, which only datasets can have.

    >>> is_listing("@photos.txt"), is_listing("photos.tar"), is_listing("photos/")
    (True, True, False)
    """
    return is_list(spec) or spec.lower().endswith(_ARCHIVE)


def is_list(spec: str) -> bool:
    """Whether a spec is ``@FILE``, a list of inputs."""
    return spec.startswith(LIST) and not os.path.exists(spec)


def class_folders(spec: str) -> list[tuple[str, list[str]]]:
    """Return the classes of a folder: the names of its subfolders, each with its images in order.

    Images in deeper folders belong to the class that they are in. Empty if the folder has images
    itself, if it has no subfolder with images, or if ``spec`` is not a folder.
    """
    folder = os.path.expanduser(spec)
    if not os.path.isdir(folder):
        return []
    try:
        with os.scandir(folder) as entries:
            there = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # reported by what lists the files
        return []
    if any(entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file() for entry in there):
        return []
    classes = [(entry.name, _images_below(entry.path)) for entry in there if entry.is_dir()]
    return [(name, images) for name, images in classes if images]


def _images_below(folder: str) -> list[str]:
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        images = (name for name in sorted(names) if name.lower().endswith(IMAGE_SUFFIXES))
        found += (os.path.join(parent, name) for name in images)
    return found


def _classified(classes: Iterable[tuple[str, list[str]]]) -> Iterator[InputEntry]:
    for name, images in classes:
        columns = ((LABEL, name),)  # one object for all of a class
        yield from (InputEntry(image, image, columns=columns) for image in images)


def _listed(spec: str) -> list[tuple[str, Columns]]:
    """Return the lines of the list ``@FILE``, with their further columns; else the spec itself."""
    if not is_list(spec):
        return [(spec, ())]
    path = spec[len(LIST) :]
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            if path.lower().endswith(".csv"):
                return _table_lines(path, csv.reader(file, strict=True))
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
    except csv.Error as error:
        raise InputError(f"The list {path!r} is not a valid table: {error}.") from error
    return [(line, ()) for line in lines if line]


def _table_lines(path: str, table: Iterator[list[str]]) -> list[tuple[str, Columns]]:
    """Return the paths in a table, each with the names and values of the other columns."""
    header = [name.strip() for name in next(table, [])]
    if PATH not in header:
        raise InputError(
            f"The table {path!r} has no column {PATH!r}; its first line is"
            f" {','.join(header)[:60]!r}.",
            "Write a first line with names, such as path,label; or one file on each line of a .txt"
            " file.",
        )
    wrong = [name for name in header if name in RESERVED or not name or header.count(name) > 1]
    if wrong:
        why = "is twice in it" if header.count(wrong[0]) > 1 else "is reserved"
        raise InputError(
            f"The column {wrong[0]!r} of {path!r} cannot be stored: the name {why}.",
            "Rename the column.",
        )
    at, lines = header.index(PATH), []
    for number, cells in enumerate(table, 2):
        if not "".join(cells).strip():
            continue
        if len(cells) != len(header):
            raise InputError(
                f"Row {number} of {path!r} has {len(cells)} cells, and the first has {len(header)}."
            )
        pairs = zip(header, cells, strict=True)
        lines.append((cells[at].strip(), tuple((n, v.strip()) for n, v in pairs if n != PATH)))
    return lines


def _archived(path: str) -> Iterator[InputEntry]:
    """Yield the images of an archive in stored order, each with the labels of its sample.

    The files of one sample have the same name up to the first dot: ``7.jpg``, ``7.cls``,
    ``7.json``. Nothing is unpacked, so names in an archive are harmless.
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
        yield InputEntry(f"{path}{_INSIDE}{name}", path, start, size, members.columns(name))


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
        if member.size > _LONGEST_LABEL:
            self._unread.append((member.name, f"has more than {_LONGEST_LABEL:,} bytes"))
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
