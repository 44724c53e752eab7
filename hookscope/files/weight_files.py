"""Which files hold the weights that a word names: one file, or a set with its index. Torch-free."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from blake3 import blake3

from hookscope.errors import RequestError, WeightsFileError
from hookscope.files.escapes import encodable
from hookscope.files.file_types import WRITE_AGAIN

# What is looked for in a folder, the first that is there: an index before the files it lists.
_IN_FOLDER = (
    ("*.safetensors.index.json",),
    ("*.safetensors",),
    ("*.bin.index.json",),
    ("pytorch_model.bin", "*.pth", "*.pt"),
)
# A number and not blake3.AUTO: the pool of threads that AUTO shares does not survive a fork.
HASH_THREADS = min(os.cpu_count() or 1, 8)
_SAVED_IN_PARTS = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch {0} FILE.pth"


@dataclass(frozen=True)
class WeightFiles:
    """The files of a set of weights, or the one file.

    Attributes:
        index: the file that tells which tensor lies in which other one; None for a single file.
        holders: the files, each with the names of tensors that the index says are in it; in order
            of name. A single file has none there, as nothing but itself tells what it holds.
    """

    index: str | None
    holders: dict[str, tuple[str, ...]]

    def blake3(self) -> str:
        """Return the BLAKE3 of the file in hexadecimal.

        Of a set it is that of a list of the index and then its files in order of name, as
        ``b3sum INDEX FILE ...`` prints it in their folder: a line for each with its BLAKE3, two
        spaces, and its name in the index.
        """
        if self.index is None:
            (path,) = self.holders
            return blake3_of(path)
        folder = os.path.dirname(self.index)
        listing = "".join(
            f"{blake3_of(path)}  {os.path.relpath(path, folder or '.').replace(os.sep, '/')}\n"
            for path in (self.index, *self.holders)
        )
        return blake3(encodable(listing).encode()).hexdigest()


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def blake3_of(path: str | os.PathLike[str]) -> str:
    """Return the BLAKE3 of a file's bytes in hexadecimal, as ``b3sum`` prints it.

    Weights take many gigabytes. BLAKE3 hashes them on all cores, each about three times as fast as
    SHA-256 with the processor's own instructions for it, and many times as fast without.
    """
    digest = blake3(max_threads=HASH_THREADS)
    with open(path, "rb") as file:  # not mapped: that would count as memory of this process
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()


def find_weight_files(word: str) -> WeightFiles:
    """Return the files that ``word`` means: an existing file, an index, or a folder.

    Raises:
        RequestError: a folder holds no weights, or several.
        WeightsFileError: an index is damaged, names files outside its folder, or files are missing.
    """
    path = _in_folder(word) if os.path.isdir(word) else word
    return _listed(path) if path.endswith(".json") else WeightFiles(None, {path: ()})


def _in_folder(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise RequestError(
            f"The folder {folder!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    for patterns in _IN_FOLDER:
        found = [name for name in names if any(fnmatchcase(name, p) for p in patterns)]
        if len(found) > 1:
            raise RequestError(
                f"{folder!r} is a folder with {len(found)} files of weights and no index that puts"
                f" them together: {', '.join(found[:3])}{' ...' if len(found) > 3 else ''}.",
                f"Name one of them: --weights {os.path.join(folder, found[0])}",
            )
        if found:
            return os.path.join(folder, found[0])
    if any(name.endswith(".distcp") for name in names):
        raise RequestError(
            f"{folder!r} is a folder that torch.distributed.checkpoint wrote.",
            f"Make one file of it: {_SAVED_IN_PARTS.format(folder)}",
        )
    raise RequestError(
        f"{folder!r} is a folder, and no weights are in it.",
        "Name a file of weights, or a folder with a .safetensors file or an index of several.",
    )


def _listed(index: str) -> WeightFiles:
    """The files that an index names, which all must be there."""
    names: dict[str, list[str]] = {}
    for tensor, file in _weight_map(index).items():
        if _leaves_folder(file):
            raise WeightsFileError(
                f"The index {index!r} names {file!r}, which is not in its folder.",
                "An index names files beside it; this one is damaged, or meant to do harm.",
            )
        names.setdefault(file, []).append(tensor)
    folder = os.path.dirname(index)
    holders = {os.path.join(folder, file): tuple(names[file]) for file in sorted(names)}
    missing = [path for path in holders if not os.path.isfile(path)]
    if missing:
        count = f"{len(missing)} of {len(holders)} files that {index!r} names"
        raise WeightsFileError(
            f"{count} {'is' if len(missing) == 1 else 'are'} not there, first {missing[0]!r}.",
            "Download it too, into the folder of the index.",
        )
    return WeightFiles(index, holders)


def _weight_map(index: str) -> dict[str, str]:
    """What an index says: the file of each tensor."""
    try:
        with open(index, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise WeightsFileError(
            f"The index {index!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    except (ValueError, RecursionError):
        content = None
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or not all(map(_is_text, found.values())):
        raise WeightsFileError(
            f"{index!r} is no index of weights: it has no weight_map that names a file for each"
            " tensor.",
            WRITE_AGAIN,
        )
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _leaves_folder(file: str) -> bool:
    """Whether a name in an index could lead elsewhere, on any system."""
    parts = re.split(r"[/\\]", file)
    return ":" in file or "\0" in file or any(part in ("", ".", "..") for part in parts)
