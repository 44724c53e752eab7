"""Atomic writing: a file is written completely or not at all, and readers never see a part."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hookscope.errors import StoreError, cause
from hookscope.files.escapes import encodable


@contextmanager
def replacement_file(path: str | os.PathLike[str], repair: str) -> Iterator[Path]:
    """Yield a new empty file in the folder of ``path``; it replaces ``path`` after the block.

    A link stays a link, to the new file. The mode of the new file follows the umask.

    Args:
        path: the file to replace.
        repair: the end of the error's hint.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    target = Path(os.path.realpath(path))
    scratch = None
    try:
        if target.is_symlink():  # realpath does not resolve a loop of links
            raise OSError(errno.ELOOP, "the symbolic link points back to itself")
        scratch = _scratch_beside(target)
        yield scratch
        os.chmod(scratch, 0o666 & ~umask())  # safetensors leaves 0600 whatever the umask
        os.replace(scratch, target)
    except (OSError, SafetensorError, ValueError) as error:
        raise StoreError(
            f"Cannot write {target}: {cause(error)}.", f"Nothing was written. {repair}"
        ) from error
    finally:
        if scratch is not None:
            # Errors are ignored: the folder may be gone or read-only by now.
            shutil.rmtree(scratch.parent, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file that ends with a line end; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    return write_bytes(path, f"{encodable(text)}\n".encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    with replacement_file(path, "Choose another path.") as scratch:
        return scratch.write_bytes(content)


def _scratch_beside(target: Path) -> Path:
    """A new empty file near ``target``, so that it can be renamed within one disk.

    It is in a folder of its own, because safetensors writes another file beside it, with a random
    name, which stays if the process is killed.
    """
    name = tempfile.mkdtemp(prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent)
    scratch = Path(name) / target.name
    scratch.touch()
    return scratch


def umask() -> int:
    """Return the mask that the process applies to the modes of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
