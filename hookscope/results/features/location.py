"""Where a folder of results lies: on a disk, or behind any address that fsspec knows (s3://...).

Torch-free. Files appear whole or not at all: on a disk by renaming, in an object store by nature.
What tells of results is then on the disk for good. Of shards, which are many times as large, their
checksum tells whether they are: a power cut may cost the last of them.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from hookscope.errors import EnvironmentFault, RequestError, ResultsFileError, StoreError, cause
from hookscope.specs.output_path import ADDRESS


class Location:
    """A folder on a disk. Names are relative to it, with slashes."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._root = Path(word)

    def __str__(self) -> str:
        return self.word

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.word,)  # a copy in another process has scratch room of its own

    def check_writable(self) -> None:
        """Demand that files can be written to it; it is made with the first of them.

        Raises:
            RequestError: it is a file, or cannot be made or written to.
        """
        there = next(p for p in (self._root, *self._root.absolute().parents) if os.path.lexists(p))
        if not there.is_dir():
            raise RequestError(f"{there} is a file, and no folder.", "Name another --output.")
        if not os.access(there, os.W_OK | os.X_OK):
            raise RequestError(
                f"The folder {there} cannot be written to.", "Name another --output."
            )

    def names(self) -> list[str]:
        """Every file in it, at any depth, in order."""
        # A link that leads nowhere is a name like others: something has to remove it.
        found = [path for path in self._root.rglob("*") if path.is_file() or path.is_symlink()]
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def _checked(self, path: Path, name: str) -> Path:
        """Return ``path``, once it is known to lie in the folder with all links followed."""
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(os.path.realpath(self._root)):
            raise ResultsFileError(
                f"{name} in {self} leads out of that folder, to {target}.",
                "A folder of results holds its own files. If you trust the file, copy it there in"
                " place of the link.",
            )
        return path

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none.

        Raises:
            ResultsFileError: the name, or a link, leads out of the folder.
        """
        path = self._checked(self._root / name, name)
        return path.stat().st_size if path.is_file() else None

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            ResultsFileError: the name, or a link, leads out of the folder.
        """
        return self._checked(self._root / name, name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole.

        Raises:
            ResultsFileError: its folder is a link that leads out of this one.
            StoreError: it cannot be written.
        """
        path = self._root / name
        self._checked(path.parent, name)
        scratch = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch.unlink(missing_ok=True)  # a link of that name would be written through
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self.take(scratch, name)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise write_error(f"{name} to {self}", error) from error

    def scratch(self, name: str) -> Path:
        """Where a file is to be written before :meth:`take` gives it its name."""
        return self._root / f".{name}.part"

    def take(self, scratch: Path, name: str) -> None:
        """Give a file that lies at ``scratch(name)`` its name."""
        os.replace(scratch, self._root / name)

    def remove(self, name: str) -> None:
        """Remove a file, and its folder if that is then empty."""
        path = self._root / name
        self._checked(path.parent, name)
        path.unlink(missing_ok=True)
        if path.parent != self._root and not any(path.parent.iterdir()):
            path.parent.rmdir()


class RemoteLocation(Location):
    """A folder behind an address."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        import fsspec

        try:
            filesystem, root = fsspec.core.url_to_fs(word.rstrip("/"))
        except ImportError as error:
            raise EnvironmentFault(
                f"{word} needs a package that is not installed: {error}", "Install it with pip."
            ) from error
        except ValueError as error:
            raise RequestError(f"{word} is no address: {error}.", "Name a folder.") from error
        self._files: Any = filesystem
        self._address = root.rstrip("/")
        self._local = Path(tempfile.mkdtemp(prefix="hookscope-"))

    def __del__(self) -> None:
        shutil.rmtree(getattr(self, "_local", ""), ignore_errors=True)

    def _at(self, name: str) -> str:
        return f"{self._address}/{name}"

    def check_writable(self) -> None:
        """Make the folder, where the store has such a thing: no other way tells of the rights."""
        try:
            self._files.makedirs(self._address, exist_ok=True)
        except Exception as error:  # each store raises its own
            raise RequestError(
                f"{self} cannot be written to: {cause(error)}.", "Check the address and the rights."
            ) from error

    def names(self) -> list[str]:
        """Every file under it, in order."""
        self._files.invalidate_cache()
        found = self._files.find(self._address)
        return sorted(path.partition(self._address + "/")[2] for path in found)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        self._files.invalidate_cache()
        if not self._files.exists(self._at(name)):
            return None
        return int(self._files.size(self._at(name)))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        file: BinaryIO = self._files.open(self._at(name), "rb")
        return file

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole."""
        try:
            try:
                self._files.pipe_file(self._at(name), data)
            except FileNotFoundError:  # of a store with folders, such as sftp
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(self._at(name), data)
        except Exception as error:
            raise StoreError(
                f"Cannot write {name} to {self}: {cause(error)}.", "Try again."
            ) from error

    def scratch(self, name: str) -> Path:
        """A file on this machine's disk, in its folder for such."""
        return self._local / name

    def take(self, scratch: Path, name: str) -> None:
        """Send a file there."""
        try:
            self._files.put_file(str(scratch), self._at(name))
        except Exception as error:
            raise StoreError(
                f"Cannot send {name} to {self}: {cause(error)}.",
                "What is finished is kept: run the same command with --resume.",
            ) from error
        scratch.unlink()

    def remove(self, name: str) -> None:
        """Remove a file."""
        if self._files.exists(self._at(name)):
            self._files.rm_file(self._at(name))


def write_error(what: str, error: OSError) -> StoreError:
    """Return the error of a disk that is full, say, while a run writes ``what``: `to out/`."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    mend = "make room" if full else "see that the folder can be written to"
    return StoreError(
        f"Cannot write {what}: {cause(error)}.",
        f"What is finished is kept: {mend}, then run the same command with --resume.",
    )


def parse_location(word: str | os.PathLike[str]) -> Location:
    """Return the folder that ``word`` names.

    Raises:
        EnvironmentFault: what its address needs is not installed.
        RequestError: it is no address.
    """
    text = os.fspath(word).removeprefix("file://")
    return RemoteLocation(text) if ADDRESS in text else Location(text)
