"""The hint for a path that does not exist: similar names in its folder, or the runs there."""

from __future__ import annotations

import os
import re

from hookscope.files.output_path import is_run_folder
from hookscope.files.suggestions import did_you_mean

_LISTED = 5


def _without(*suffixes: str) -> re.Pattern[str]:
    """A pattern of every name that has none of the suffixes, such as that of a folder."""
    return re.compile(rf"(?!.*\.({'|'.join(suffixes)})$).+", re.DOTALL | re.IGNORECASE)


# Which names are suggested. A file may have another suffix than the usual one, so only names of
# files that are certainly something else are left out.
_DOCUMENTS = ("md", "rst", "html", "pdf", "svg", "toml", "log", "sh", "ipynb")
_IMAGES = ("png", "jpe?g", "webp", "gif", "bmp", "tiff?")
PYTHON_FILES = re.compile(r".+\.py", re.DOTALL)
MODEL_FILES = _without(*_DOCUMENTS, *_IMAGES, "npy", "npz", "csv", "tsv", "txt", "json")
MODEL_FOLDERS = _without(*_DOCUMENTS, *_IMAGES, "py", "npy", "npz", "csv", "tsv", "txt", "onnx")
INPUT_FILES = _without(*_DOCUMENTS, "py", "onnx", "pt2", "ckpt", "gguf")
RESULT_FILES = _without(*_DOCUMENTS, *_IMAGES, "py", "onnx", "pt2", "txt")


def near_files(
    path: str | os.PathLike[str], otherwise: str, pattern: re.Pattern[str] | None = None
) -> str:
    """Return the hint for a path that does not exist.

    Example:
        >>> near_files("no/such.py", "Check the name and the folder.")
        'Check the name and the folder.'
    """
    folder, name = os.path.split(os.fspath(path).rstrip("/\\"))
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return otherwise
    if pattern is not None:
        names = [entry for entry in names if pattern.fullmatch(entry)]
    if near := did_you_mean(name, names, folder=folder):
        return near
    if os.path.splitext(name)[1] or not folder:
        return otherwise
    runs = [entry for entry in names if is_run_folder(os.path.join(folder, entry))]
    if not runs:
        return otherwise
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    return f"Training runs in {folder!r}: {', '.join(runs[:_LISTED])}{more}."
