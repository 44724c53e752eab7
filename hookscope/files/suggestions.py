"""Suggestions of similar names ("did you mean"), those with the text in them first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Set
from itertools import islice

from hookscope.files.output_path import is_run_folder
from hookscope.files.words import join_first, join_or

_COMPARED, _LONGEST = 10_000, 300

_LISTED = 5
# Which names are suggested. A file may have another suffix than the usual one, so only names of
# files that are certainly something else are left out.
_DOCUMENTS = ("md", "rst", "html", "pdf", "svg", "toml", "log", "sh", "ipynb")
_IMAGES = ("png", "jpe?g", "webp", "gif", "bmp", "tiff?")
PYTHON_FILES = re.compile(r".+\.py", re.DOTALL)


def near(word: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of ``names`` that resemble ``word``, the nearest first.

    >>> near("vit", ["resnet18", "vit_b_16", "vit_b_32"])
    ['vit_b_16', 'vit_b_32']
    >>> near("resnt18", ["alexnet", "resnet18", "resnet34"])
    ['resnet18', 'resnet34']
    """
    from difflib import SequenceMatcher  # only needed for a mistake

    wanted = word.lower()
    if not wanted:
        return []

    def rank(name: str) -> tuple[bool, float, int]:
        text = name.lower()
        return (wanted not in text, -SequenceMatcher(None, wanted, text).ratio(), len(name))

    def resembles(name: str) -> bool:
        text = name.lower()
        return wanted in text or SequenceMatcher(None, wanted, text).ratio() >= 0.6

    if isinstance(names, Set):  # its order changes from process to process
        names = sorted(names)
    # Each comparison takes time, and a file may hold millions of names, or very long ones.
    names = [name for name in islice(names, _COMPARED) if len(name) <= _LONGEST]
    return sorted(filter(resembles, dict.fromkeys(names)), key=rank)[:count]


def did_you_mean(
    word: str,
    names: Iterable[str],
    aliases: Mapping[str, str] | None = None,
    *,
    folder: str = "",
) -> str:
    """Return ``Did you mean A, B or C?`` for the names near ``word``, or an empty string.

    >>> did_you_mean("vit", ["resnet18", "vit_b_16", "vit_b_32"])
    'Did you mean vit_b_16 or vit_b_32?'
    >>> did_you_mean("cross-entropy", ["kl", "ce"], {"crossentropy": "ce"})
    'Did you mean ce?'
    """
    alias = (aliases or {}).get(re.sub(r"[\s_-]+", "", word.lower()))
    found = [alias] if alias else near(word, names)
    if not found:
        return ""
    return f"Did you mean {join_or([os.path.join(folder, name) for name in found])}?"


def _without(*suffixes: str) -> re.Pattern[str]:
    """A pattern of every name that has none of the suffixes, such as that of a folder."""
    return re.compile(rf"(?!.*\.({'|'.join(suffixes)})$).+", re.DOTALL | re.IGNORECASE)


MODEL_FILES = _without(*_DOCUMENTS, *_IMAGES, "npy", "npz", "csv", "tsv", "txt", "json")
MODEL_FOLDERS = _without(*_DOCUMENTS, *_IMAGES, "py", "npy", "npz", "csv", "tsv", "txt", "onnx")
INPUT_FILES = _without(*_DOCUMENTS, "py", "onnx", "pt2", "ckpt", "gguf")
RESULT_FILES = _without(*_DOCUMENTS, *_IMAGES, "py", "onnx", "pt2", "txt")


def near_files(
    path: str | os.PathLike[str], otherwise: str, pattern: re.Pattern[str] | None = None
) -> str:
    """Return the hint for a path that does not exist."""
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
    return f"Training runs in {folder!r}: {join_first(runs, _LISTED)}."
