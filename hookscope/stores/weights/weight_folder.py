"""The files of weights that a path stands for: a file, an index, or a folder of either.

``files/weight_files.py`` finds those that a model is loaded from. Here also numbered files without
an index count (``model-00001-of-00030.safetensors``), and files of other formats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hookscope.errors import RequestError, WeightsFileError
from hookscope.files.shell_words import quote_word
from hookscope.files.weight_files import WeightFiles, find_weight_files
from hookscope.specs.model_spec import check_weights_file

_NUMBERED = re.compile(
    r"(?P<stem>.*?)-?(?P<number>\d{2,6})-of-(?P<count>\d{2,6})(?P<suffix>\.(safetensors|bin|gguf|pth?))"
)
_INDEX = ".index.json"
_OTHER_FORMATS = (".gguf", ".npz", ".ckpt")
_ANY_FORMAT = (".safetensors", ".bin", ".pth", ".pt", *_OTHER_FORMATS)
_MOST_FILES = 100_000
_LISTED = 3


def find_files(path: str) -> WeightFiles:
    """Return the files of weights that ``path`` stands for."""
    if not os.path.isdir(path):
        return check_weights_file(path)
    try:
        names = sorted(os.listdir(path))[:_MOST_FILES]
    except OSError as error:
        raise RequestError(
            f"The folder {path!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    names = [name for name in names if _may_be_read(os.path.join(path, name))]
    if any(name.endswith(_INDEX) for name in names):
        return find_weight_files(path)
    if files := _numbered_files(path, names):
        return files
    others = [name for name in names if name.endswith(_OTHER_FORMATS)]
    if len(others) == 1 and not any(name.endswith(_ANY_FORMAT[:4]) for name in names):
        return WeightFiles(None, {os.path.join(path, others[0]): ()})
    if inside := [] if any(n.endswith(_ANY_FORMAT) for n in names) else _subfolders(path, names):
        raise RequestError(
            f"The folder {path!r} contains no weights itself; folders in it do.",
            f"Name one of them: {', '.join(map(quote_word, inside))}",
        )
    return find_weight_files(path)


def named_files(folder: str) -> list[str]:
    """Return the files in a folder whose names are those of weights."""
    paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder))[:_MOST_FILES])
    return [path for path in paths if path.endswith(_ANY_FORMAT) and os.path.isfile(path)]


def _may_be_read(path: str) -> bool:
    """Whether a path is no pipe or device by the name of a file of weights, or such a file."""
    return not path.endswith((*_ANY_FORMAT, _INDEX)) or os.path.isfile(path)


def _numbered_files(folder: str, names: Sequence[str]) -> WeightFiles | None:
    """The files of a set that are numbered 1 to N; None if there are not exactly those of one
    set.
    """
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            key = (match["stem"], match["count"], match["suffix"])
            found.setdefault(key, {})[int(match["number"])] = name
    singles = [n for n in names if n.endswith(_ANY_FORMAT) and not _NUMBERED.fullmatch(n)]
    if len(found) != 1 or singles:
        return None
    [((_, count, _), files)] = found.items()
    if lacking := int(count) - len(files):
        raise WeightsFileError(
            f"{lacking} of the {int(count)} numbered files in {folder!r} are missing.",
            "Download the missing files to the folder.",
        )
    return WeightFiles(None, {os.path.join(folder, files[n]): () for n in sorted(files)})


def _subfolders(folder: str, names: Sequence[str]) -> list[str]:
    """Some folders in a folder that have files of weights, as in a set of diffusers."""
    inside = [os.path.join(folder, name) for name in names[:1000]]
    folders = [path for path in inside if os.path.isdir(path) and os.access(path, os.R_OK)]
    endings = (*_ANY_FORMAT, _INDEX)
    return [p for p in folders if any(n.endswith(endings) for n in os.listdir(p))][:_LISTED]
