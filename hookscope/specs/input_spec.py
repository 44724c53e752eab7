"""The specs of ``--input``: which argument a value is for, its kind, and its file. Torch-free."""

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
from hookscope.files.input_files import IMAGE_SUFFIXES, LINES_PREFIX, glob_files, list_files
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.model_spec import is_function_spec, parse_function
from hookscope.specs.value_readers import read_shape

STDIN = "-"
NO_IMAGE = "no image is given"
IMAGE_OPTIONS = ("preprocess", "size", "mean", "std")

# The kinds of input; hookscope/inputs/ has a file for each.
IMAGE, VIDEO, AUDIO, TEXT = "image", "video", "audio", "text"
NUMPY, SAFETENSORS, TORCH, TABLE = "numpy", "safetensors", "torch", "table"
JSON, GENERATED, PYTHON = "json", "generated", "python"
TENSORS = (NUMPY, SAFETENSORS, TORCH, TABLE, JSON, GENERATED, PYTHON)  # which need no preprocessing
TEXT_PREFIXES = ("text", "lines")
MAKERS = ("random", "zeros", "ones", "ints")

MAX_TEXT_BYTES = 16 << 20  # tokenizers take seconds for each million
VOCABULARIES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)

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
# The kinds that the first bytes of a file show, for files whose name shows none.
_CONTENTS = {
    filekinds.SAFETENSORS: SAFETENSORS,
    filekinds.CHECKPOINT: TORCH,
    filekinds.ARRAY: NUMPY,
    filekinds.ARRAYS: NUMPY,
    filekinds.AUDIO: AUDIO,
    filekinds.VIDEO: VIDEO,
}
_PLACE = re.compile(r"(?P<place>[^\W\d]\w*|\d{1,3})=(?P<rest>.*)", re.DOTALL)
_PREFIX = re.compile(r"(?P<prefix>\w{2,}):(?P<rest>.*)", re.DOTALL)  # longer than a drive letter
_KEYED = re.compile(
    r"(?P<path>.+?\.(npz|safetensors|pt|pth|csv|tsv)):(?P<key>.+)", re.DOTALL | re.IGNORECASE
)
_BOUNDS = re.compile(r"(?P<shape>[^:]+):(?P<low>-?\d{1,18})-(?P<high>-?\d{1,18})")
_MADE = (
    f"An input is a file, {', '.join(f'{name}:SHAPE' for name in MAKERS[:3])},"
    " ints:SHAPE:LOW-HIGH, text:WORDS or lines:FILE."
)


@dataclass(frozen=True)
class InputSpec:
    """A parsed value of ``--input``."""

    text: str
    kind: str
    place: str | int | None = None
    path: str = ""
    rest: str = ""
    shape: tuple[int, ...] = ()
    bounds: tuple[int, int] = (0, 0)

    def __fspath__(self) -> str:
        """Return the text of the spec: a parsed spec is accepted wherever its text is."""
        return self.text


def parse_inputs(specs: Iterable[str | os.PathLike[str]]) -> list[InputSpec]:
    """Parse the specs that are texts, in order. A folder or a glob gives one for each file."""
    parsed = [
        one
        for spec in specs
        for one in ([spec] if isinstance(spec, InputSpec) else _parse_one(os.fspath(spec)))
    ]
    if sum(one.path == STDIN for one in parsed) > 1:
        raise InputError("Standard input can be read only once.", "Give '-' a single time.")
    return parsed


def input_paths(specs: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the files that valid specs are read from."""
    return [one.path for one in parse_inputs(specs) if one.path and one.path != STDIN]


def paths_in(spec: str) -> list[str]:
    """Return every path and glob that a reader of inputs may take from a spec. No file is opened.

    >>> paths_in("x=a.npz:ids"), paths_in("lines:notes.txt:3"), paths_in("x=random:1x3")
    (['x=a.npz:ids', 'x=a.npz', 'a.npz:ids', 'a.npz'], ['notes.txt:3', 'notes.txt'], [])
    """
    bare, is_made = _without_place(spec)
    wholes = [spec, bare]
    if bare.startswith(LINES_PREFIX):
        wholes = [bare.removeprefix(LINES_PREFIX)]
    elif is_made:  # unless it is the name of a file
        return [one for one in wholes if os.path.lexists(one) or glob_files(one)]
    names = [part for one in wholes for part in (one, one.rpartition(":")[0])]
    return list(dict.fromkeys(filter(None, names)))


def is_single_spec(text: str) -> bool:
    """Whether a text with colons from a variable is one spec rather than a list as in ``PATH``.

    >>> is_single_spec("random:1x3x8x8"), is_single_spec("a.png:b.png")
    (True, False)
    """
    bare, is_made = _without_place(text)
    keyed = _KEYED.fullmatch(bare)
    is_keyed = keyed is not None and not os.path.exists(keyed["key"])
    return is_made or is_function_spec(bare) or is_keyed


def _without_place(spec: str) -> tuple[str, bool]:
    """A spec without the name of an argument, and whether it is a text or made by hookscope."""
    placed = _PLACE.fullmatch(spec)
    bare = placed["rest"] if placed else spec
    prefix = _PREFIX.fullmatch(bare)
    return bare, prefix is not None and prefix["prefix"] in (*MAKERS, *TEXT_PREFIXES)


def check_file_type(spec: InputSpec) -> None:
    """Raise InputError if the first bytes of a file contradict its name. The rest is not read."""
    if not os.path.isfile(spec.path):  # reading from a pipe would consume it
        return
    if spec.kind == IMAGE:
        filekinds.check_is_image(spec.path)
        return
    kind, repair = filekinds.describe_file(spec.path)
    wanted = [kind_text for kind_text, name in _CONTENTS.items() if name == spec.kind]
    if wanted and kind not in (*wanted, filekinds.UNKNOWN):
        cut = kind in (
            filekinds.TRUNCATED_ZIP,
            filekinds.TRUNCATED_PICKLE,
            filekinds.TRUNCATED_SAFETENSORS,
        )
        hint = (
            repair
            if cut or kind in filekinds.TOO_LARGE or spec.kind == TORCH
            else "Rename it with the extension of its type."
        )
        raise InputError(f"The file {spec.path!r} is {kind}, not {wanted[0]}.", hint)


def reject_image_options(choices: Mapping[str, Any], why: str) -> None:
    """Raise InputError if options for images are given without an image, other than ``none``."""
    chosen = {name: choices.get(name) for name in IMAGE_OPTIONS}
    if chosen["preprocess"] == "none":  # which is what happens without an image
        chosen["preprocess"] = None
    unused = [f"--{name}" for name, value in chosen.items() if value is not None]
    if unused:
        are, them = ("is", "it") if len(unused) == 1 else ("are", "them")
        raise InputError(
            f"{' and '.join(unused)} {are} for images, and {why}.",
            f"Leave {them} out, or give --input.",
        )


def may_name_image(spec: str) -> bool:
    """Whether a spec may stand for images, or for Python code that gives some. No file is opened.

    >>> may_name_image("photos/"), may_name_image("ids=ints:1x4:0-9"), may_name_image("a.npy")
    (True, False, False)
    """
    bare, is_made = _without_place(spec)
    if is_made or _KEYED.fullmatch(bare):
        return False
    if bare.startswith("@"):  # a list of files
        return True
    return _SUFFIXES.get(Path(bare).suffix.lower(), IMAGE) in (IMAGE, VIDEO)


def may_hold_images(specs: Sequence[InputSpec]) -> bool:
    """Whether some of the specs can use options for images."""
    return any(spec.kind in (IMAGE, VIDEO, PYTHON) for spec in specs)


def _parse_one(spec: str) -> list[InputSpec]:
    if not spec:
        raise InputError("An input is empty.", "Give a file, a folder, a glob or '-'.")
    placed = _PLACE.fullmatch(spec)
    whole = os.path.expanduser(spec)
    if not placed or os.path.lexists(whole) or glob_files(whole):  # a file name may contain =
        return _parse_bare(spec)
    name, rest = placed["place"], placed["rest"]
    if not rest:
        raise InputError(f"{spec!r} has no input after the =.", "Write it as in ids=tokens.npy.")
    place = int(name) if name.isdecimal() else name
    return [replace(one, place=place, text=f"{name}={one.text}") for one in _parse_bare(rest)]


def _parse_bare(spec: str) -> list[InputSpec]:
    """Parse a spec without the name of an argument."""
    if spec == STDIN:
        return [InputSpec(spec, IMAGE, path=spec)]
    if os.path.lexists(os.path.expanduser(spec)) and not spec.endswith(".py"):
        return _from_files(spec)
    prefix = _PREFIX.fullmatch(spec)
    if spec.startswith(LINES_PREFIX):
        return _from_lines(spec, spec.removeprefix(LINES_PREFIX))
    if prefix and prefix["prefix"] == "text":
        if not prefix["rest"].strip():
            raise InputError(f"{spec!r} contains no text.", 'Write it as in "text:some words".')
        return [InputSpec(spec, TEXT, rest=prefix["rest"])]
    if prefix and prefix["prefix"] in MAKERS:
        return [_made(spec, prefix["prefix"], prefix["rest"])]
    keyed = _KEYED.fullmatch(spec)
    if keyed:
        return [replace(one, text=spec, rest=keyed["key"]) for one in _from_files(keyed["path"])]
    if names_function(spec):
        function = parse_function(spec)
        path = function.home if function.in_file else ""
        return [InputSpec(spec, PYTHON, path=path, rest=function.text)]
    if prefix and (near := did_you_mean(prefix["prefix"], (*MAKERS, *TEXT_PREFIXES))):
        raise InputError(f"There is no kind of input {prefix['prefix']!r}.", f"{near} {_MADE}")
    return _from_files(spec, _MADE if prefix else "")


def names_function(spec: str) -> bool:
    """Whether a spec that is not a file names an object in Python code."""
    if spec.endswith(".py"):
        return True  # the function's name is missing
    home = spec.rpartition(":")[0]
    if not is_function_spec(spec):
        return False
    return home.endswith(".py") or "." in home or find_spec(home) is not None


def names_object(spec: str) -> bool:
    """Whether an input of a dataset names an object in Python code, such as a Dataset.

    >>> names_object("data.py:photos"), names_object("photos/")
    (True, False)
    """
    return names_function(spec) and (spec.endswith(".py") or not os.path.lexists(spec))


def may_name_code(spec: str) -> bool:
    """Whether a spec that is not a file may name an object in Python code. No file is read.

    >>> may_name_code("x=data.py:batch"), may_name_code("x=random:1x3"), may_name_code("a.npz:ids")
    (True, False, False)
    """
    bare, is_made = _without_place(spec)
    if is_made or _KEYED.fullmatch(bare):
        return False
    return is_function_spec(bare) or bare.endswith(".py")


def _from_files(spec: str, hint: str = "") -> list[InputSpec]:
    return [InputSpec(file, _kind_of(file), path=file) for file in list_files(spec, hint)]


def _from_lines(spec: str, rest: str) -> list[InputSpec]:
    """A text for each line of a file that is not empty, or for line N of ``FILE:N``."""
    name, chosen = _line_of(rest)
    file = os.path.expanduser(name)
    try:
        if os.path.getsize(file) > MAX_TEXT_BYTES:
            raise InputError(
                f"The file {file!r} exceeds {MAX_TEXT_BYTES >> 20} MiB, the limit for such a file.",
                "Split it.",
            )
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except OSError as exc:
        raise InputError(f"The file {file!r} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise InputError(
            f"The file {file!r} is not UTF-8 text: byte {exc.start} is not valid.",
            "Write it as UTF-8.",
        ) from exc
    texts = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    if chosen is not None:
        texts = [(n, line) for n, line in texts if n == chosen]
    if not texts:
        missing = "no text" if chosen is None else f"no text in line {chosen}"
        raise InputError(f"{spec!r} has {missing}.", "Give a file with a text in each line.")
    return [InputSpec(f"lines:{file}:{n}", TEXT, path=file, rest=line) for n, line in texts]


def _line_of(rest: str) -> tuple[str, int | None]:
    """The file in what follows ``lines:``, and the number of the line if it has one."""
    name, _, number = rest.rpartition(":")
    if name and number.isdecimal() and not os.path.exists(rest):
        return name, int(number)
    return rest, None


def check_tokenizer(path: str) -> None:
    """Raise InputError if a path cannot belong to a tokenizer."""
    hint = "Give the tokenizer.json of the package tokenizers, or a folder of transformers."
    if not os.path.exists(path):
        raise InputError(f"There is no tokenizer {path!r}.", hint)
    if os.path.isdir(path) and not any(
        os.path.isfile(os.path.join(path, name)) for name in VOCABULARIES
    ):
        raise InputError(f"The folder {path!r} contains no tokenizer.", hint)


def _kind_of(file: str) -> str:
    """Return the kind of a file by its suffix, or by its first bytes if the suffix is unknown."""
    kind = _SUFFIXES.get(Path(file).suffix.lower())
    if kind is None and os.path.isfile(file):
        kind = _CONTENTS.get(filekinds.describe_file(file)[0])
    return kind or IMAGE


def _made(spec: str, maker: str, rest: str) -> InputSpec:
    if maker != "ints":
        return InputSpec(spec, GENERATED, rest=maker, shape=read_shape(rest))
    bounds = _BOUNDS.fullmatch(rest)
    if not bounds or int(bounds["low"]) >= int(bounds["high"]):
        raise InputError(
            f"{spec!r} has no valid range of integers.",
            "Write ints:SHAPE:LOW-HIGH, as in ints:1x16:0-1000 for integers from 0 to 999.",
        )
    limits = int(bounds["low"]), int(bounds["high"])
    return InputSpec(spec, GENERATED, rest=maker, shape=read_shape(bounds["shape"]), bounds=limits)
