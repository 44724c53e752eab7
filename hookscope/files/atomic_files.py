"""Files written as a whole or not at all: a reader finds the old one or the new, never a part."""

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
    """Yield a new empty file in the folder of ``path``; it takes the place of ``path`` at the end.

    A link stays a link, to the new file. The new one's mode follows the umask.

    Raises:
        StoreError: the file cannot be written; its hint ends in ``repair``. An earlier one is then
            as it was.
    """
    target = Path(os.path.realpath(path))
    scratch = None
    try:
        if target.is_symlink():  # which is how realpath leaves a loop
            raise OSError(errno.ELOOP, "it is a link that leads back to itself")
        scratch = _scratch_beside(target)
        yield scratch
        os.chmod(scratch, 0o666 & ~_umask())  # safetensors leaves 0600 whatever the umask
        os.replace(scratch, target)
    except (OSError, SafetensorError, ValueError) as error:
        raise StoreError(
            f"Cannot write {target}: {cause(error)}.", f"Nothing was written. {repair}"
        ) from error
    finally:
        if scratch is not None:
            # Without a word where its folder has gone or can no longer be written to.
            shutil.rmtree(scratch.parent, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file with a last line end; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier one is then as it was.
    """
    return write_bytes(path, f"{encodable(text)}\n".encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier one is then as it was.
    """
    with replacement_file(path, "Choose another place.") as scratch:
        return scratch.write_bytes(content)


def _scratch_beside(target: Path) -> Path:
    """A new empty file near ``target``, so that renaming it stays on one disk.

    It lies in a folder of its own: safetensors writes a file with a name that tells nothing beside
    it, which stays where the process is killed.
    """
    name = tempfile.mkdtemp(prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent)
    scratch = Path(name) / target.name
    scratch.touch()
    return scratch


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
