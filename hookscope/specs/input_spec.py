"""The grammar of the words behind ``--input``: where a value goes, its kind, and its file.

Torch-free, so that a wrong word is reported before anything heavy is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookscope.errors import InputError
from hookscope.files import file_types as filekinds
from hookscope.specs.input_files import IMAGE_SUFFIXES, glob_files, list_files
from hookscope.specs.model_spec import is_function_spec, parse_function, parse_shape
from hookscope.specs.suggestions import did_you_mean

STDIN = "-"
NO_IMAGE = "no image is given"
IMAGE_OPTIONS = ("preprocess", "size", "mean", "std")

# The kinds of input; each has a file of its name in hookscope/inputs/ that reads it.
IMAGE, VIDEO, AUDIO, TEXT = "image", "video", "sound", "text"
NUMPY, SAFETENSORS, TORCH, TABLE = "numpy", "safetensors", "torch", "table"
JSON, GENERATED, PYTHON = "json", "made", "offered"
TENSORS = (NUMPY, SAFETENSORS, TORCH, TABLE, JSON, GENERATED, PYTHON)  # which need no recipe
TEXT_PREFIX = "text"
MAKERS = ("random", "zeros", "ones", "ints")

_SUFFIXES = {
    **dict.fromkeys(IMAGE_SUFFIXES, IMAGE),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"), VIDEO),
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3", ".aiff"), AUDIO),
    **dict.fromkeys((".npy", ".npz"), NUMPY),
    **dict.fromkeys((".pt", ".pth"), TORCH),
    **dict.fromkeys((".csv", ".tsv"), TABLE),
    ".safetensors": SAFETENSORS,
    ".txt": TEXT,
    ".json": JSON,
}
# What the first bytes of a file tell, for those whose name tells nothing.
_CONTENTS = {
    filekinds.SAFETENSORS: SAFETENSORS,
    filekinds.CHECKPOINT: TORCH,
    filekinds.ARRAY: NUMPY,
    filekinds.ARRAYS: NUMPY,
    filekinds.AUDIO: AUDIO,
    filekinds.VIDEO: VIDEO,
}
_PLACE = re.compile(r"(?P<place>[^\W\d]\w*|\d{1,3})=(?P<rest>.*)", re.DOTALL)
_PREFIX = re.compile(r"(?P<prefix>\w+):(?P<rest>.*)", re.DOTALL)
_KEYED = re.compile(
    r"(?P<path>.+?\.(npz|safetensors|pt|pth|csv|tsv)):(?P<key>.+)", re.DOTALL | re.IGNORECASE
)
_BOUNDS = re.compile(r"(?P<shape>[^:]+):(?P<low>-?\d{1,18})-(?P<high>-?\d{1,18})")
_MADE = (
    f"Besides files there are {', '.join(f'{name}:SHAPE' for name in MAKERS[:3])},"
    " ints:SHAPE:LOW-HIGH and text:WORDS."
)


@dataclass(frozen=True)
class InputSpec:
    """A word behind ``--input``, taken apart.

    Attributes:
        word: the whole word, of a folder or a glob that of one file.
        kind: ``image``, ``numpy``, ``made`` ... : which reader it is for.
        place: the argument it is for: a parameter's name, a position from 0, or None.
        path: the file; ``-`` is standard input; empty where there is none.
        rest: what of a file is meant (a key, columns), the words of a text, the maker of a tensor,
            or the word of a function.
        shape: of a tensor to be made.
        bounds: of its whole numbers, the second not among them.
    """

    word: str
    kind: str
    place: str | int | None = None
    path: str = ""
    rest: str = ""
    shape: tuple[int, ...] = ()
    bounds: tuple[int, int] = (0, 0)


def parse_inputs(words: Iterable[str | os.PathLike[str]]) -> list[InputSpec]:
    """Take the words apart, in the order given; folders and globs become several.

    Raises:
        InputError: a word has no meaning, a file is not there, or ``-`` stands there twice.

    Example:
        >>> [(word.place, word.kind, word.shape) for word in parse(["ids=ints:1x4:0-9"])]
        [('ids', 'made', (1, 4))]
    """
    found = [one for word in words for one in _parse_one(os.fspath(word))]
    if sum(one.path == STDIN for one in found) > 1:
        raise InputError("Standard input can be read only once.", "Give '-' a single time.")
    return found


def expand_inputs(words: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return one word for each file and each other input that ``words`` stand for."""
    return [one.word for one in parse_inputs(words)]


def input_paths(words: Iterable[str]) -> list[str]:
    """Return the files that words which were found sound are read from."""
    return [one.path for one in parse_inputs(words) if one.path and one.path != STDIN]


def is_single_spec(text: str) -> bool:
    """Whether a text with colons, as a variable holds it, is one word and no list as in ``PATH``.

    >>> is_single_spec("random:1x3x8x8"), is_single_spec("a.png:b.png")
    (True, False)
    """
    placed = _PLACE.fullmatch(text)
    bare = placed["rest"] if placed else text
    prefix = _PREFIX.fullmatch(bare)
    keyed = _KEYED.fullmatch(bare)
    return bool(
        (prefix and prefix["prefix"] in (*MAKERS, TEXT_PREFIX))
        or is_function_spec(bare)
        or (keyed and not os.path.exists(keyed["key"]))
    )


def check_file_type(word: InputSpec) -> None:
    """Refuse a file whose first bytes are of another kind than its name says, without reading it.

    Raises:
        InputError: says what it is.
    """
    if not os.path.isfile(word.path):  # reading from a pipe would empty it
        return
    if word.kind == IMAGE:
        filekinds.check_is_image(word.path)
        return
    kind, repair = filekinds.describe_file(word.path)
    wanted = [told for told, name in _CONTENTS.items() if name == word.kind]
    if wanted and kind not in (*wanted, filekinds.UNKNOWN):
        cut = kind in (
            filekinds.TRUNCATED_ZIP,
            filekinds.TRUNCATED_PICKLE,
            filekinds.TRUNCATED_SAFETENSORS,
        )
        hint = (
            repair
            if cut or kind in filekinds.TOO_LARGE or word.kind == TORCH
            else "Give it the ending of what it is."
        )
        raise InputError(f"The file {word.path!r} is {kind}, not {wanted[0]}.", hint)


def reject_image_options(choices: Mapping[str, Any], why: str) -> None:
    """Refuse choices for images that would change nothing, rather than pass over them in silence.

    Args:
        choices: what was given for ``preprocess``, ``size``, ``mean`` and ``std``; other keys do
            not count.
        why: there is no image.
    """
    unused = [f"--{name}" for name in IMAGE_OPTIONS if choices.get(name) is not None]
    if unused:
        are, them = ("is", "it") if len(unused) == 1 else ("are", "them")
        raise InputError(
            f"{' and '.join(unused)} {are} for images, and {why}.",
            f"Leave {them} out, or give --input.",
        )


def may_name_image(spec: str) -> bool:
    """Whether a spec may stand for images or for Python code that gives some; no file is opened.

    >>> may_name_image("photos/"), may_name_image("ids=ints:1x4:0-9"), may_name_image("a.npy")
    (True, False, False)
    """
    placed = _PLACE.fullmatch(spec)
    bare = placed["rest"] if placed else spec
    prefix = _PREFIX.fullmatch(bare)
    if (prefix and prefix["prefix"] in (*MAKERS, TEXT_PREFIX)) or _KEYED.fullmatch(bare):
        return False
    return _SUFFIXES.get(Path(bare).suffix.lower(), IMAGE) in (IMAGE, VIDEO)


def may_hold_images(words: Sequence[InputSpec]) -> bool:
    """Whether choices for images can have a meaning for some of the words."""
    return any(word.kind in (IMAGE, VIDEO, PYTHON) for word in words)


def _parse_one(word: str) -> list[InputSpec]:
    if not word:
        raise InputError("An empty word names no input.", "Give a file, a folder, a glob or '-'.")
    placed = _PLACE.fullmatch(word)
    whole = os.path.expanduser(word)
    if not placed or os.path.lexists(whole) or glob_files(whole):  # a file's name may have a =
        return _parse_bare(word)
    name, rest = placed["place"], placed["rest"]
    if not rest:
        raise InputError(f"{word!r} names no input after the =.", "Write it as in ids=tokens.npy.")
    place = int(name) if name.isdecimal() else name
    return [replace(one, place=place, word=f"{name}={one.word}") for one in _parse_bare(rest)]


def _parse_bare(word: str) -> list[InputSpec]:
    """Take apart a word that does not say where it goes."""
    if word == STDIN:
        return [InputSpec(word, IMAGE, path=word)]
    if os.path.lexists(os.path.expanduser(word)) and not word.endswith(".py"):
        return _from_files(word)
    prefix = _PREFIX.fullmatch(word)
    if prefix and prefix["prefix"] == TEXT_PREFIX:
        if not prefix["rest"].strip():
            raise InputError(f"{word!r} says nothing.", 'Write it as in "text:some words".')
        return [InputSpec(word, TEXT, rest=prefix["rest"])]
    if prefix and prefix["prefix"] in MAKERS:
        return [_made(word, prefix["prefix"], prefix["rest"])]
    keyed = _KEYED.fullmatch(word)
    if keyed:
        return [replace(one, word=word, rest=keyed["key"]) for one in _from_files(keyed["path"])]
    if names_function(word):
        function = parse_function(word)
        path = function.home if function.in_file else ""
        return [InputSpec(word, PYTHON, path=path, rest=function.word)]
    if prefix and (near := did_you_mean(prefix["prefix"], (*MAKERS, TEXT_PREFIX))):
        raise InputError(f"There is no kind of input {prefix['prefix']!r}.", f"{near} {_MADE}")
    return _from_files(word, _MADE if prefix else "")


def names_function(word: str) -> bool:
    """Whether a word, if it is no file, is the name of something in Python code."""
    if word.endswith(".py"):
        return True  # which then lacks the function's name
    home = word.rpartition(":")[0]
    if not is_function_spec(word):
        return False
    return home.endswith(".py") or "." in home or find_spec(home) is not None


def may_name_code(word: str) -> bool:
    """Whether a word, if it is no file, may name something in Python code; no file is looked at.

    >>> may_name_code("x=data.py:batch"), may_name_code("x=random:1x3"), may_name_code("a.npz:ids")
    (True, False, False)
    """
    placed = _PLACE.fullmatch(word)
    bare = placed["rest"] if placed else word
    prefix = _PREFIX.fullmatch(bare)
    if (prefix and prefix["prefix"] in (*MAKERS, TEXT_PREFIX)) or _KEYED.fullmatch(bare):
        return False
    return is_function_spec(bare) or bare.endswith(".py")


def _from_files(word: str, hint: str = "") -> list[InputSpec]:
    return [InputSpec(file, _kind_of(file), path=file) for file in list_files(word, hint)]


def _kind_of(file: str) -> str:
    """The reader that a file is for: by its ending, or by its first bytes if that says nothing."""
    kind = _SUFFIXES.get(Path(file).suffix.lower())
    if kind is None and os.path.isfile(file):
        kind = _CONTENTS.get(filekinds.describe_file(file)[0])
    return kind or IMAGE


def _made(word: str, maker: str, rest: str) -> InputSpec:
    if maker != "ints":
        return InputSpec(word, GENERATED, rest=maker, shape=parse_shape(rest))
    bounds = _BOUNDS.fullmatch(rest)
    if not bounds or int(bounds["low"]) >= int(bounds["high"]):
        raise InputError(
            f"{word!r} does not say which whole numbers.",
            "Write ints:SHAPE:LOW-HIGH, as in ints:1x16:0-1000 for those from 0 to 999.",
        )
    limits = int(bounds["low"]), int(bounds["high"])
    return InputSpec(word, GENERATED, rest=maker, shape=parse_shape(bounds["shape"]), bounds=limits)
