"""The files that a value of ``--input`` stands for: a file itself, or those of a folder or a glob.

Torch-free, so that a mistake is reported before torch is imported.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import INPUT_FILES, near_files

log = logging.getLogger("hookscope")

_SHOWN = 3  # names that a note lists

Columns = tuple[tuple[str, str], ...]  # names and values that are stored beside an input

LABEL = "label"  # the column of the classes of folders, and of other labels
PATH = "path"  # the column of a list in CSV that names the files
# Names in the table of inputs that a column cannot have.
RESERVED = ("row", "item", "bytes", "sha256", "skipped")
TEXT_RESERVED = (PATH, *RESERVED, "tokens", "spans")  # ... if the inputs are texts
LINES_PREFIX = "lines:"  # of a file with a text in each line
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def list_files(
    spec: str, hint: str = "", *, usable: bool = True, there: bool = True
) -> Sequence[str]:
    """Return the files that one spec stands for, after checking each.

    A folder stands for the images in it (by suffix, sorted by name, without subfolders). A path
    that exists is taken as it is even if it contains ``*``, ``?`` or ``[``; otherwise these make it
    a glob, whose matches are sorted by name. ``**`` crosses folders.
    """
    path = os.path.expanduser(spec)
    if os.path.isdir(path):
        return _images_in(path, usable)
    if os.path.lexists(path) or not has_magic(path):
        return [check_file(path, hint, usable) if there else path]
    found = glob_files(path)
    if not found:
        raise InputError(f"No file matches {spec!r}.", "Check the folder and the pattern.")
    rest = [entry for entry in glob(path, recursive=True) if not os.path.isfile(entry)]
    # A pattern such as **/* also matches the folders that it searches.
    named = [x for x in rest if not os.path.isdir(x) or x.lower().endswith(IMAGE_SUFFIXES)]
    _tell_left_out(spec, named)
    return [check_file(file, hint, usable) for file in found]


def glob_files(pattern: str) -> list[str]:
    """Return the files that a glob matches, sorted by name; an empty list if it is not a glob."""
    if not has_magic(pattern):
        return []
    return sorted(file for file in glob(pattern, recursive=True) if os.path.isfile(file))


def _images_in(folder: str, usable: bool) -> Sequence[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as exc:
        raise InputError(f"The folder {folder!r} cannot be read: {exc.strerror}.") from exc
    found = [os.path.join(folder, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    images = [file for file in found if os.path.isfile(file)]
    others = [file for file in found if not os.path.isfile(file)]
    if not images:
        known = " ".join(IMAGE_SUFFIXES)
        those = f" ({_list_left_out(others)})" if others else ""
        below = os.path.join(folder, "*", "*")
        hint = f"Only {known} files of a folder are read; give others by name or by a glob."
        if any(file.lower().endswith(IMAGE_SUFFIXES) for file in glob(below)):
            hint = f"Its subfolders do: write {quote_word(below)}."
        raise InputError(f"The folder {folder!r} contains no images{those}.", hint)
    _tell_left_out(folder, others)
    return [check_file(file, "", usable) for file in images]


def _tell_left_out(spec: str, entries: Sequence[str]) -> None:
    if entries:
        log.info("skipped in %s: %s", spec, _list_left_out(entries))


def _list_left_out(entries: Sequence[str]) -> str:
    """Describe what is not read in a folder, such as pipes: reading one could block forever."""
    shown = [f"{os.path.basename(entry)} ({_kind(entry)})" for entry in sorted(entries)[:_SHOWN]]
    more = ", ..." if len(entries) > _SHOWN else ""
    noun = "entry that is not a file" if len(entries) == 1 else "entries that are not files"
    return f"{len(entries)} {noun}: {', '.join(shown)}{more}"


def _kind(entry: str) -> str:
    if os.path.islink(entry) and not os.path.exists(entry):
        return "a broken link"
    if os.path.isdir(entry):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(os.stat(entry).st_mode) else "a device or socket"


def check_file(file: str, hint: str = "", usable: bool = True) -> str:
    """Return ``file`` after checking it; see ``list_files``."""
    path = Path(file)
    if not os.path.exists(file):
        no_folder = f"There is no folder {str(path.parent)!r} either."
        if " " in file and not path.suffix:
            hint = hint or f"For a text write {quote_word(f'text:{file}')}."
        no_file = "Check the name and the folder." if path.parent.is_dir() else no_folder
        raise InputError(
            f"There is no file {file!r}.", near_files(file, hint or no_file, INPUT_FILES)
        )
    if not usable:
        return file
    if path.is_file() and not path.stat().st_size:  # a pipe has no size and may still be read
        raise InputError(f"The file {file!r} is empty.", WRITE_AGAIN)
    if not os.access(file, os.R_OK):
        raise InputError(f"The file {file!r} cannot be read.", "Check its permissions.")
    return file
