"""Which files may be opened because a file of data names them: those in its folder or below it.

A file of data may come from anyone. What it names must not make hookscope read another file of the
user, wait for a pipe, or connect to an address. The user can name all of these.
"""

from __future__ import annotations

import os
import re
import stat
from glob import has_magic, iglob
from pathlib import Path

from hookscope.errors import ResultsFileError

ADDRESS = "://"  # is part of the address of an object store, and of no path
OUTSIDE = "is outside the folder of that file"
ADDRESS_OUTSIDE = "is an address outside the folder of that file"


def why_not_opened(name: str, *folders: str | os.PathLike[str]) -> str:
    """Return why a name in a file of one of these folders is not opened, as a clause; else nothing.

    Links are followed, and a glob is judged by all that it matches. What does not exist is left to
    its reader.

    >>> why_not_opened("s3://bucket/a.npy", ".")
    'is an address outside the folder of that file'
    >>> why_not_opened("../a.npy", "."), why_not_opened("a.npy", ".")
    ('is outside the folder of that file', '')
    """
    if ADDRESS in name:
        return ADDRESS_OUTSIDE
    paths = dict.fromkeys((name, os.path.expanduser(name)))  # some readers expand it
    return next(filter(None, (_why_not_matched(path, folders) for path in paths)), "")


def why_folder_not_read(folder: str, *folders: str | os.PathLike[str]) -> str:
    """Return why a folder is not opened: as ``why_not_opened``, for a link in it too."""
    if refused := why_not_opened(folder, *folders):
        return refused
    for parent, names, files in os.walk(os.path.expanduser(folder)):
        files = [name for name in files if os.path.splitext(name)[1]]  # others are not read
        for path in (os.path.join(parent, name) for name in (*names, *files)):
            if os.path.islink(path) and (refused := _why_not_read(path, folders)):
                return refused
    return ""


def _why_not_matched(path: str, folders: tuple[str | os.PathLike[str], ...]) -> str:
    if os.path.splitdrive(path)[0].startswith(("\\\\", "//")):
        return "is a path on another machine"
    if not has_magic(path) or os.path.lexists(path):
        return _why_not_read(path, folders)
    start = _without_glob(path)
    if ".." in Path(path).parts[len(Path(start).parts) :]:
        return OUTSIDE
    refused = _why_not_read(start, folders)
    matched = () if refused else iglob(path, recursive=True)
    return refused or next(filter(None, (_why_not_read(one, folders) for one in matched)), "")


def _why_not_read(path: str, folders: tuple[str | os.PathLike[str], ...]) -> str:
    try:
        real = Path(os.path.realpath(path))
    except ValueError:  # a null character, or half of a surrogate pair
        return "is not the name of a file"
    if not any(real.is_relative_to(os.path.realpath(folder)) for folder in folders):
        return OUTSIDE
    try:
        mode = real.stat().st_mode
    except OSError:
        return ""
    regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return "" if regular else "is a pipe, a socket or a device"


def homes_of(file: str) -> tuple[str, str]:
    """Return the folder of a file and that of its target: the cache of the hub has links."""
    return os.path.dirname(file) or ".", os.path.dirname(os.path.realpath(file))


def check_own(path: Path, folder: str | os.PathLike[str]) -> Path:
    """Return a path in a folder of results; ResultsFileError if it leads out of the folder."""
    if why := why_not_opened(str(path), folder):
        raise ResultsFileError(
            f"{path} {f'leads out of {os.fspath(folder)}' if why == OUTSIDE else why}.",
            "If you trust it, name it by itself, or put a copy there.",
        )
    return path


def leaves_folder(name: str) -> bool:
    r"""Whether a relative name could be outside its folder, on any operating system.

    Links are not followed: the cache of the hub has links to its files.

    >>> [leaves_folder(name) for name in ("a/b.bin", "../b.bin", "/b.bin", "C:b.bin", "a\\..")]
    [False, True, True, True, True]
    """
    parts = re.split(r"[/\\]", name)
    return ":" in name or "\0" in name or any(part in ("", ".", "..") for part in parts)


def _without_glob(path: str) -> str:
    """The folders before the first part of a path that has a sign of a glob."""
    while has_magic(path):
        path = os.path.dirname(path)
    return path or "."
