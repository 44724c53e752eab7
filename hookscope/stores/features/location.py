"""The location of a folder of results: on a disk, or at any address that fsspec supports (s3://...).

Files appear whole or not at all: on a disk by renaming, in an object store always. The files that
describe the results are flushed to the disk (fsync). Shards are many times as large and are not: a
power cut may destroy the last of them, which their checksums detect.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from hookscope.errors import EnvironmentFault, RequestError, ResultsFileError, StoreError, cause
from hookscope.files.output_path import ADDRESS
from hookscope.files.own_folder import OUTSIDE, why_not_opened


class Location:
    """A folder on a disk. Names are relative to it, with slashes."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._root = Path(address)

    def __str__(self) -> str:
        return self.address

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)  # a copy in another process has its own scratch folder

    def check_writable(self) -> None:
        """Check that files can be written to the folder. The first file creates it."""
        parents = (self._root, *self._root.absolute().parents)
        existing = next(path for path in parents if os.path.lexists(path))
        if not existing.is_dir():
            raise RequestError(f"{existing} is a file, not a folder.", "Choose another --output.")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise RequestError(
                f"The folder {existing} is not writable.", "Choose another --output."
            )

    def names(self) -> list[str]:
        """Every file in it, at any depth, in order."""
        # Broken links are listed too, so that they can be removed.
        paths = [path for path in self._root.rglob("*") if path.is_file() or path.is_symlink()]
        return sorted(path.relative_to(self._root).as_posix() for path in paths)

    def _checked(self, path: Path, name: str) -> Path:
        """Return ``path``; raise ResultsFileError if it is outside the folder, or a pipe."""
        if why := why_not_opened(str(path), self._root):
            problem = "refers to a file outside that folder" if why == OUTSIDE else why
            raise ResultsFileError(
                f"{name} in {self} {problem}: {os.path.realpath(path)}.",
                "If you trust that file, copy it into the folder in place of the link.",
            )
        return path

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        path = self._checked(self._root / name, name)
        return path.stat().st_size if path.is_file() else None

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self._checked(self._root / name, name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole."""
        path = self._root / name
        self._checked(path.parent, name)
        scratch = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch.unlink(missing_ok=True)  # if it is a link, its target must not be written
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self.publish(scratch, name)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise write_error(f"{name} to {self}", error) from error

    def scratch(self, name: str) -> Path:
        """The path at which to write a file before :meth:`publish` gives it its name."""
        return self._root / f".{name}.part"

    def publish(self, scratch: Path, name: str) -> None:
        """Give the file at ``scratch(name)`` its name."""
        os.replace(scratch, self._root / name)

    def remove(self, name: str) -> None:
        """Remove a file, and its folder if it is empty afterwards."""
        path = self._root / name
        self._checked(path.parent, name)
        path.unlink(missing_ok=True)
        if path.parent != self._root and not any(path.parent.iterdir()):
            path.parent.rmdir()


class RemoteLocation(Location):
    """A folder at an address of an object store or a remote file system."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        import fsspec

        try:
            filesystem, root = fsspec.core.url_to_fs(address.rstrip("/"))
        except ImportError as error:
            raise EnvironmentFault(
                f"{address} needs a package that is not installed: {error}", "Install it with pip."
            ) from error
        except ValueError as error:
            raise RequestError(
                f"{address} is not a valid address: {error}.", "Give a folder."
            ) from error
        self._files: Any = filesystem
        self._remote_root = root.rstrip("/")
        self._local = Path(tempfile.mkdtemp(prefix="hookscope-"))

    def __del__(self) -> None:
        shutil.rmtree(getattr(self, "_local", ""), ignore_errors=True)

    def _at(self, name: str) -> str:
        return f"{self._remote_root}/{name}"

    def check_writable(self) -> None:
        """Create the folder, if the store has folders; only this shows whether it is allowed."""
        try:
            self._files.makedirs(self._remote_root, exist_ok=True)
        except Exception as error:  # each store raises its own
            raise RequestError(
                f"{self} cannot be written to: {cause(error)}.",
                "Check the address and your permissions.",
            ) from error

    def names(self) -> list[str]:
        """Every file under it, in order."""
        self._files.invalidate_cache()
        paths = self._files.find(self._remote_root)
        return sorted(path.partition(self._remote_root + "/")[2] for path in paths)

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
            except FileNotFoundError:  # from a store with folders, such as sftp
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(self._at(name), data)
        except Exception as error:
            raise StoreError(
                f"Cannot write {name} to {self}: {cause(error)}.", "Try again."
            ) from error

    def scratch(self, name: str) -> Path:
        """A path in a temporary folder of this machine."""
        return self._local / name

    def publish(self, scratch: Path, name: str) -> None:
        """Upload a file."""
        try:
            self._files.put_file(str(scratch), self._at(name))
        except Exception as error:
            raise StoreError(
                f"Cannot upload {name} to {self}: {cause(error)}.",
                "Finished rows are saved. Run the same command with --resume.",
            ) from error
        scratch.unlink()

    def remove(self, name: str) -> None:
        """Remove a file."""
        if self._files.exists(self._at(name)):
            self._files.rm_file(self._at(name))


def write_error(what: str, error: OSError) -> StoreError:
    """Return the error for a run that cannot write ``what`` (`to out/`), such as a full disk."""
    quota = getattr(errno, "EDQUOT", errno.ENOSPC)  # not every system has it
    full = error.errno in (errno.ENOSPC, quota, errno.EFBIG)
    fix = "Free some space" if full else "Check that the folder is writable"
    return StoreError(
        f"Cannot write {what}: {cause(error)}.",
        f"Finished rows are saved. {fix}, then run the same command with --resume.",
    )


def parse_location(address: str | os.PathLike[str]) -> Location:
    """Return the folder that ``address`` names."""
    text = os.fspath(address)
    if text.startswith("file://"):
        text = path_of_file_address(text)
    return RemoteLocation(text) if ADDRESS in text else Location(text)


def path_of_file_address(address: str, windows: bool = os.name == "nt") -> str:
    """Return the path in an address that begins with ``file://``.

    >>> path_of_file_address("file:///srv/features", windows=False)
    '/srv/features'
    >>> path_of_file_address("file:///C:/features", windows=True)
    'C:/features'
    """
    path = address.removeprefix("file://")
    return re.sub(r"^/(?=[A-Za-z]:)", "", path) if windows else path
