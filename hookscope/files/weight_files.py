"""The files of a set of weights: a single file, or several files with an index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hookscope.errors import RequestError, WeightsFileError
from hookscope.escapes import encodable
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.hashes import blake3_of
from hookscope.files.own_folder import OUTSIDE, homes_of, leaves_folder, why_not_opened
from hookscope.files.shell_words import quote_word
from hookscope.files.strict_json import parse_table

# The names to look for in a folder, in this order: an index before the files it lists.
_FOLDER_PATTERNS = (
    ("*.safetensors.index.json",),
    ("*.safetensors",),
    ("*.bin.index.json",),
    ("pytorch_model.bin", "*.pth", "*.pt"),
)
_LONGEST_INDEX = 100_000_000  # bytes
_JOIN_COMMAND = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch {0} FILE.pth"


@dataclass(frozen=True)
class WeightFiles:
    """The files of a set of weights."""

    index: str | None
    holders: dict[str, tuple[str, ...]]

    def blake3(self) -> str:
        """Return the BLAKE3 of the file in hexadecimal.

        For several files it is the BLAKE3 of the output of ``b3sum INDEX FILE ...`` in their folder
        with the files in order of name: a line for each with its BLAKE3, two spaces and its name.
        """
        from blake3 import blake3

        if self.index is None:
            (path,) = self.holders
            return blake3_of(path)
        folder = os.path.dirname(self.index)
        listing = "".join(
            f"{blake3_of(path)}  {os.path.relpath(path, folder or '.').replace(os.sep, '/')}\n"
            for path in (self.index, *self.holders)
        )
        return blake3(encodable(listing).encode()).hexdigest()


def find_weight_files(path: str) -> WeightFiles:
    """Return the files of ``path``: an existing file, an index, or a folder."""
    if os.path.isdir(path):
        path = _find_in_folder(path)
    return _read_index(path) if path.endswith(".json") else WeightFiles(None, {path: ()})


def names_in(folder: str) -> list[str]:
    """Return the names in a folder in order."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise RequestError(
            f"The folder {folder!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error


def _find_in_folder(folder: str) -> str:
    """The path of the single weights file or index in a folder."""
    names = names_in(folder)
    for patterns in _FOLDER_PATTERNS:
        matches = [
            name
            for name in names
            if any(fnmatchcase(name, p) for p in patterns)
            and os.path.isfile(os.path.join(folder, name))  # reading a pipe would wait for ever
        ]
        if len(matches) > 1:
            raise RequestError(
                f"The folder {folder!r} contains {len(matches)} weights files and no index:"
                f" {', '.join(matches[:3])}{' ...' if len(matches) > 3 else ''}.",
                f"Name one of them: {quote_word(os.path.join(folder, matches[0]))}",
            )
        if matches:
            return os.path.join(folder, matches[0])
    if any(name.endswith(".distcp") for name in names):
        raise RequestError(
            f"The folder {folder!r} was written by torch.distributed.checkpoint.",
            f"Convert it to one file: {_JOIN_COMMAND.format(quote_word(folder))}",
        )
    raise RequestError(
        f"The folder {folder!r} contains no weights.",
        "Give a weights file, or a folder with a .safetensors file or an index.",
    )


def _read_index(index: str) -> WeightFiles:
    """The files that an index names, all of which must exist."""
    names: dict[str, list[str]] = {}
    folder, homes = os.path.dirname(index), homes_of(index)
    for tensor, file in _weight_map(index).items():
        if file not in names:
            path = os.path.join(folder, file)
            if refused := OUTSIDE if leaves_folder(file) else why_not_opened(path, *homes):
                raise WeightsFileError(
                    f"The index {index!r} lists {file!r}, which {refused}.",
                    "An index lists files in its own folder. This one is damaged or malicious.",
                )
        names.setdefault(file, []).append(tensor)
    holders = {os.path.join(folder, file): tuple(names[file]) for file in sorted(names)}
    missing = [path for path in holders if not os.path.isfile(path)]
    if missing:
        raise WeightsFileError(
            f"{len(missing)} of the {len(holders)} files listed in {index!r} are missing, such as"
            f" {missing[0]!r}.",
            "Download the missing files to the folder of the index.",
        )
    return WeightFiles(index, holders)


def _weight_map(index: str) -> dict[str, str]:
    """The content of an index: the file of each tensor."""
    try:
        with open(index, "rb") as file:
            data = file.read(_LONGEST_INDEX + 1)
        content = parse_table(data) if len(data) <= _LONGEST_INDEX else None
    except OSError as error:
        raise WeightsFileError(
            f"The index {index!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    except (ValueError, RecursionError):
        content = None
    files = content.get("weight_map") if isinstance(content, dict) else None
    valid = isinstance(files, dict) and all(isinstance(file, str) for file in files.values())
    if not files or not valid:
        raise WeightsFileError(
            f"{index!r} is not a valid index of weights: it has no weight_map that lists the file"
            " of each tensor.",
            WRITE_AGAIN,
        )
    return dict(files)
