"""Which files may be opened because a file of data names them: those in its folder or below it.

A file of data may come from anyone. What it names must not make hookscope read another file of the
user, wait for a pipe, or connect to an address. The user can name all of these.
"""

from __future__ import annotations

import os
import re
import stat
from glob import has_magic
from pathlib import Path

from hookscope.errors import ResultsFileError

ADDRESS = "://"  # is part of the address of an object store, and of no path
OUTSIDE = "is outside the folder of that file"
ADDRESS_OUTSIDE = "is an address outside the folder of that file"


def why_not_opened(name: str, *folders: str | os.PathLike[str]) -> str:
    """Return why a name in a file of one of these folders is not opened, as a clause; else nothing.

    Links are followed. Of a glob, the part before the first sign is looked at. What does not exist
    is left to its reader.

    >>> why_not_opened("s3://bucket/a.npy", ".")
    'is an address outside the folder of that file'
    >>> why_not_opened("../a.npy", "."), why_not_opened("a.npy", ".")
    ('is outside the folder of that file', '')
    """
    if ADDRESS in name:
        return ADDRESS_OUTSIDE
    path = os.path.expanduser(name)
    if os.path.splitdrive(path)[0].startswith(("\\\\", "//")):
        return "is a path on another machine"
    try:
        real = Path(os.path.realpath(_without_glob(path)))
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
    if os.path.lexists(path):
        return path
    while has_magic(path):
        path = os.path.dirname(path)
    return path or "."
