"""Files written as a whole or not at all: a reader finds the old one or the new, never a part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hookscope.errors import StoreError, cause


@contextmanager
def replacing(path: str | os.PathLike[str], repair: str) -> Iterator[Path]:
    """Yield a new empty file in the folder of ``path``; it takes the place of ``path`` at the end.

    A link stays a link, to the new file. The new one's mode follows the umask.

    Raises:
        StoreError: the file cannot be written; its hint ends in ``repair``. An earlier one is then
            as it was.
    """
    target = Path(os.path.realpath(path))
    scratch = None
    try:
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
            scratch.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file with a last line end; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier one is then as it was.
    """
    return write_bytes(path, f"{text}\n".encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier one is then as it was.
    """
    with replacing(path, "Choose another place.") as scratch:
        return scratch.write_bytes(content)


def _scratch_beside(target: Path) -> Path:
    """A new empty file in the folder of ``target``, so that renaming it stays on one disk."""
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(number)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
