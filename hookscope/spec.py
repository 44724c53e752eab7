"""The grammar of what is typed: a model's word, a shape, ``KEY=VALUE`` pairs.

Torch-free. A file given as a model is looked at just far enough to say what it is.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.suggest import did_you_mean

TORCHVISION, FILE = "torchvision", "file"

# A drive letter is no source: `C:\nets\mine.py:Net` splits at its last colon only.
_PYTHON_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:/\\]*))?", re.DOTALL)
_MODEL_FILE = re.compile(r".+\.(py|pt|pth|pt2|ts|ckpt|bin|pkl|safetensors|onnx)")
_PREFIX = re.compile(r"(?P<source>\w{2,}):(?!\\)")
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
_TEXT_IMAGES = re.compile(rb"P[1-7Ff]\s|%!PS|/\* XPM|#define|Image type|SIMPLE")
_PRINTABLE = re.compile(rb"[\t\n\f\r -~]{4,}")
_WEIGHTS_FILE = re.compile(r".+\.(safetensors|pth|pt|bin|ckpt)", re.DOTALL | re.IGNORECASE)
_USE_WEIGHTS = "Name its model and give the file as weights: hookscope capture MODEL --weights {0}"
_NOT_YET = "This version does not open such files; give the Python source: FILE.py:NAME."
_READS_IMAGES = "Images are read as PNG, JPEG, WebP, GIF, BMP, TIFF and what else pillow knows."
_A_MODEL = "A model is a torchvision name (hookscope models lists them) or FILE.py:NAME."

EMPTY, IMAGE, TEXT = "an empty file", "an image", "a text file"
UNKNOWN = "a file of no kind that hookscope knows"
CUT_OFF = "a damaged or cut-off zip archive"
TORCHSCRIPT, EXPORTED = "a TorchScript archive", "a program saved by torch.export (.pt2)"
ONNX, CHECKPOINT = "an ONNX graph", "a pickled checkpoint"
AGAIN = "Write or download it again."


class Typed(str):
    """A value typed on a command line, whose type is settled where its meaning is known."""

    __slots__ = ()


@dataclass(frozen=True)
class ModelSpec:
    """A model's word, taken apart.

    Attributes:
        source: ``torchvision`` or ``file``.
        word: the whole word.
        path: the Python file of a file source, else empty.
        name: the model's name in its source; empty when a file is to hold just one.
    """

    source: str
    word: str
    path: str
    name: str


def parse_model(word: str) -> ModelSpec:
    r"""Take a model's word apart.

    Raises:
        ModelError: the word names a missing file, or a file or source that holds no model.

    Example:
        >>> parse_model("resnet18").source
        'torchvision'
    """
    if word.isidentifier():  # even where a file or folder of that name happens to lie about
        return ModelSpec(TORCHVISION, word, "", word)
    if not word.strip():
        raise ModelError("An empty word names no model.", _A_MODEL)
    python = _PYTHON_FILE.fullmatch(word)
    if python:
        path, name = python["path"], python["name"]
        if not Path(path).is_file():
            raise ModelError(f"There is no file {path!r}.", _near_file(path))
        if name is not None and not name.isidentifier():
            raise ModelError(f"{name!r} is no name in a Python file.", f"Write {path}:NAME.")
        return ModelSpec(FILE, word, path, name or "")
    refuse_path(word)
    prefix = _PREFIX.match(word)
    if prefix:
        raise ModelError(f"There is no source of models called {prefix['source']!r}.", _A_MODEL)
    if "/" in word or "\\" in word or _MODEL_FILE.fullmatch(word):
        raise ModelError(f"There is no file {word!r}.", _near_file(word))
    return ModelSpec(TORCHVISION, word, "", word)


def refuse_path(word: str) -> None:
    """Raise ModelError, saying what it is, if ``word`` is an existing file or folder."""
    if Path(word).is_dir():
        raise ModelError(f"{word!r} is a folder, not a model.", _A_MODEL)
    if Path(word).is_file():
        kind, repair = describe_file(word)
        raise ModelError(f"{word!r} is {kind}, not a model by itself.", repair)


def describe_file(path: str) -> tuple[str, str]:
    """Say what the existing file ``path`` is, and how to use it where a model was asked for.

    Example:
        >>> import os, tempfile
        >>> handle, path = tempfile.mkstemp()
        >>> os.close(handle)
        >>> describe_file(path)[0]
        'an empty file'
    """
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as exc:
        return f"a file that cannot be read ({exc.strerror})", "Check its permissions."
    suffix = Path(path).suffix.lower()
    if not head:
        return EMPTY, AGAIN
    if head.startswith(b"PK"):
        return _describe_zip(path)
    if head.startswith(_IMAGES):
        return IMAGE, f"Give it as the input: hookscope capture MODEL --input {path}"
    if head[8:10] in (b'{"', b"{ ", b"{}") or suffix == ".safetensors":
        return "a safetensors file of weights", _USE_WEIGHTS.format(path)
    if head[:1] == b"\x80" or suffix in (".pt", ".pth", ".ckpt", ".bin", ".pkl"):
        return CHECKPOINT, _USE_WEIGHTS.format(path)
    if suffix == ".onnx":
        return ONNX, _NOT_YET
    return TEXT if _PRINTABLE.fullmatch(head) else UNKNOWN, _A_MODEL


def refuse_other_than_image(path: str) -> None:
    """Raise InputError if the first bytes of ``path`` are of another kind of file than an image.

    Bytes that tell nothing are let pass, as the kinds of images are many; decoding judges them.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError:
        return
    if not _TEXT_IMAGES.match(head) and describe_file(path)[0] not in (IMAGE, UNKNOWN):
        raise not_an_image(f"The file {path!r}", path)


def not_an_image(called: str, path: str = "") -> InputError:
    """Return the error about input that no image can be read from; ``path`` is its file, if any."""
    kind = f": it looks like {describe_file(path)[0]}" if path else ""
    return InputError(f"{called} is not an image{kind}.", _READS_IMAGES)


def is_weights_file(word: str) -> bool:
    """Whether a weights word means a file rather than a name."""
    typed = _WEIGHTS_FILE.fullmatch(word) or "/" in word or os.sep in word
    return bool(typed) or Path(word).exists()


def check_weights_file(path: str) -> None:
    """Refuse a file of weights that is not there.

    Raises:
        RequestError: ``path`` is missing, or a folder.
    """
    if Path(path).is_dir():
        raise RequestError(f"{path!r} is a folder, not a file of weights.", "Name a file in it.")
    if not Path(path).exists():
        near = _near_file(path, "Check the name and the folder.")
        raise RequestError(f"There is no file of weights {path!r}.", near)


def ended(text: str) -> str:
    """Return ``text`` with a full stop after it, unless it ends like a sentence already.

    >>> ended("no data!"), ended("too short"), ended("too short.")
    ('no data!', 'too short.', 'too short.')
    """
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _describe_zip(path: str) -> tuple[str, str]:
    """What the names in a zip archive tell; TorchScript also holds a data.pkl, so it goes first."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return CUT_OFF, AGAIN

    def holds(pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names)

    if holds("*/code/*") or holds("code/*"):
        return TORCHSCRIPT, _NOT_YET
    if holds("*/models/*.json") or holds("models/*.json"):
        return EXPORTED, _NOT_YET
    if holds("*/data.pkl") or holds("data.pkl"):
        return CHECKPOINT, _USE_WEIGHTS.format(path)
    return "a zip archive with no weights in it", _A_MODEL


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a tensor shape such as ``1x3x224x224``; a comma separates as well as an ``x``.

    Raises:
        InputError: a length is no positive integer.

    >>> parse_shape("1x3x224x224")
    (1, 3, 224, 224)
    """
    parts = [part.strip() for part in re.split(r"[x,×]", text.lower())]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(
            f"{text!r} is no shape.", "Write positive lengths with x between them: 1x3x224x224."
        )
    return tuple(int(part) for part in parts)


def parse_assignments(pairs: Iterable[str]) -> dict[str, Typed]:
    """Read ``KEY=VALUE`` pairs; a value stays as typed until the receiver's parameter is known.

    Raises:
        RequestError: a pair has no ``=``, a key is no Python name, or a key comes twice.

    >>> parse_assignments(["width=8", "act=relu"])
    {'width': '8', 'act': 'relu'}
    """
    values: dict[str, Typed] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise RequestError(f"{pair!r} is not KEY=VALUE.", "Write it as in --model-arg width=8.")
        if key in values:
            raise RequestError(f"{key!r} is given twice.", "Give each key once.")
        values[key] = Typed(value)
    return values


def _near_file(path: str, otherwise: str = _A_MODEL) -> str:
    folder = Path(path).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return did_you_mean(Path(path).name, names) or otherwise
