"""Atomic writing: a file is written completely or not at all, and readers never see a part."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hookscope.errors import StoreError, cause
from hookscope.escapes import encodable
from hookscope.files.end_signals import end_if_asked

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".part"


@contextmanager
def replacement_file(path: str | os.PathLike[str], repair: str) -> Iterator[Path]:
    """Yield a new empty file in the folder of ``path``; it replaces ``path`` after the block.

    A link stays a link, to the new file. The mode of the new file follows the umask. What killed
    processes left of earlier writes to ``path`` is removed.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_symlink():  # realpath does not resolve a loop of links
            raise OSError(errno.ELOOP, "the symbolic link points back to itself")
        with scratch_file(target) as scratch:
            yield scratch
            end_if_asked()
            os.chmod(scratch, 0o666 & ~umask())  # safetensors leaves 0600 whatever the umask
            os.replace(scratch, target)
    except _errors_of_writing() as error:
        raise StoreError(
            f"Cannot write {target}: {cause(error)}.", f"Nothing was written. {repair}"
        ) from error


@contextmanager
def scratch_file(target: Path) -> Iterator[Path]:
    """Yield a new empty file near ``target``, in a folder that is removed after the block.

    What killed processes left of earlier ones for this target is removed.
    """
    scratch, lock = _scratch_beside(target)
    try:
        yield scratch
    finally:
        # Errors are ignored: the folder may be gone or read-only by now.
        shutil.rmtree(scratch.parent, ignore_errors=True)
        _unlock(lock)


def remove_stale_files(target: Path) -> None:
    """Remove what killed processes left of scratch files for ``target``."""
    _remove_stale(target.parent, _prefix(target))


def _errors_of_writing() -> tuple[type[Exception], ...]:
    """What writing may raise; safetensors only if it is imported, because that takes time."""
    safetensors = sys.modules.get("safetensors")
    more = () if safetensors is None else (safetensors.SafetensorError,)
    return (OSError, ValueError, *more)


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file that ends with a line end; return its size in bytes."""
    return write_bytes(path, f"{encodable(text)}\n".encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file; return its size in bytes."""
    with replacement_file(path, "Choose another path.") as scratch:
        return scratch.write_bytes(content)


def _scratch_beside(target: Path) -> tuple[Path, int | None]:
    """A new empty file near ``target``, so that it can be renamed within one disk; and its lock."""
    prefix = _prefix(target)
    _remove_stale(target.parent, prefix)
    while True:
        # A folder of its own, because safetensors writes another file beside it, with a random
        # name, which stays if the process is killed; then the system releases the lock.
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=target.parent))
        lock = _lock(folder, wait=True)
        scratch = folder / target.name
        try:
            scratch.touch()
        except FileNotFoundError:  # another process took it for a stale one before it was locked
            _unlock(lock)
        else:
            return scratch, lock


def _prefix(target: Path) -> str:
    return f".{target.name[:40]}."


def _remove_stale(home: Path, prefix: str) -> None:
    """Remove the folders of earlier writes to a path whose processes are gone."""
    own = re.compile(rf"{re.escape(prefix)}\w{{8}}{re.escape(_SUFFIX)}")
    try:
        names = [name for name in os.listdir(home) if own.fullmatch(name)]
    except OSError:  # a folder may be writable and not readable
        return
    for folder in (home / name for name in names):
        lock = _lock(folder, wait=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _unlock(lock)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder until ``_unlock`` or the end of the process; None if that is not possible."""
    if sys.platform == "win32":  # what a killed process left stays there
        return None
    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # it is locked or gone, or the file system has no locks
        _unlock(handle)
        return None
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def umask() -> int:
    """Return the mask that the process applies to the modes of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
