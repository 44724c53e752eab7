"""The grammar of what is typed: a model's word, a shape, ``KEY=VALUE`` pairs.

Torch-free. A file that is no Python source is a model if it holds one, whatever it is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.files.file_types import EXPORT_ARCHIVE, MODEL_FORMS, SCRIPT_ARCHIVE, describe_file
from hookscope.files.weight_files import WeightFiles, find_weight_files
from hookscope.specs.suggestions import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TORCHVISION, FILE, MODULE = "torchvision", "file", "module"

TORCHSCRIPT, EXPORTED = "torchscript", "exported"

TIMM, TRANSFORMERS, PLUGIN = "timm", "hf", "plugin"

LIVE = "live"  # a module that was given and not loaded

CONFIGURATION = "config.json"  # what a folder of transformers begins with

# A drive letter is no source: `C:\nets\mine.py:Net` splits at its last colon only.
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_IN_MODULE = re.compile(rf"(?P<path>{_MODULE.pattern}):(?P<name>([^\W\d]\w*)?)")

_PYTHON_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:/\\]*))?", re.DOTALL)

_MODEL_FILE = re.compile(r".+\.(py|pt|pth|pt2|ts|ckpt|bin|pkl|safetensors|onnx)")

_PREFIX = re.compile(r"(?P<source>\w{2,}):(?P<rest>(?!\\).*)", re.DOTALL)

_NO_HUB_NAME = re.compile(r"[./~]|.*\\|.*\.json$|.*/.*/", re.DOTALL)  # organisation/name at most

_WEIGHTS_FILE = re.compile(
    r".+\.(safetensors|pth|pt|bin|ckpt|index\.json)", re.DOTALL | re.IGNORECASE
)

_SOURCES = {SCRIPT_ARCHIVE: TORCHSCRIPT, EXPORT_ARCHIVE: EXPORTED}  # by the kind of the file


class CommandLineText(str):
    """A value typed on a command line, whose type is settled where its meaning is known."""

    __slots__ = ()


@dataclass(frozen=True)
class ModelSpec:
    """A model's word, taken apart.

    Attributes:
        source: ``torchvision``, ``file`` (Python source), ``module`` (one to import), ``timm``,
            ``hf`` (transformers), ``plugin``, ``torchscript`` or ``exported``.
        word: the whole word.
        path: the file or the folder; the dotted name of a module; the prefix of a plugin; what
            follows ``hf:``; empty for a model of torchvision or timm.
        name: the model's name in its source, empty when a Python file is to hold just one; of a
            scripted or exported file the name without its ending, fit to stand in a file's name.
    """

    source: str
    word: str
    path: str
    name: str

    @property
    def stem(self) -> str:
        """What files made of this model begin with."""
        return self.name or (
            self.path.rpartition(".")[2] if self.source == MODULE else Path(self.path).stem
        )


def parse_model(word: str) -> ModelSpec:
    r"""Take a model's word apart; a file is looked at to tell what it holds.

    Raises:
        ModelError: the word names a missing file, or a file or source that holds no model.

    Example:
        >>> parse_model("resnet18").source
        'torchvision'
    """
    if word.isidentifier():  # even where a file or folder of that name happens to lie about
        return ModelSpec(TORCHVISION, word, "", word)
    if not word.strip():
        raise ModelError("An empty word names no model.", MODEL_FORMS)
    python = _PYTHON_FILE.fullmatch(word)
    if python:
        path, name = python["path"], python["name"]
        if not Path(path).is_file():
            raise ModelError(f"There is no file {path!r}.", _near_file(path))
        if name is not None and not name.isidentifier():
            raise ModelError(f"{name!r} is no name in a Python file.", f"Write {path}:NAME.")
        return ModelSpec(FILE, word, path, name or "")
    if Path(word).is_file() and (source := _SOURCES.get(describe_file(word)[0])):
        name = re.sub(r"[^\w-]+", "_", Path(word).stem).strip("_-")
        return ModelSpec(source, word, word, name or source)
    reject_path(word)
    prefix = _PREFIX.fullmatch(word)
    if prefix and prefix["source"] in _PREFIXES:
        return _PREFIXES[prefix["source"]](word, prefix["rest"])
    module = _IN_MODULE.fullmatch(word)
    if module and ("." in module["path"] or can_be_imported(module["path"])):
        return ModelSpec(MODULE, word, module["path"], module["name"])
    if prefix:
        return _of_plugin(word, prefix["source"], prefix["rest"])
    if "/" in word or "\\" in word or _MODEL_FILE.fullmatch(word):
        raise ModelError(f"There is no file {word!r}.", _near_file(word))
    return ModelSpec(TORCHVISION, word, "", word)


def may_name_code(word: str) -> bool:
    r"""Whether a model's word may name Python code or a plugin; no file is looked at.

    Python itself names classes in a model of torchvision, timm or transformers. A scripted or
    exported file holds data.

    >>> [may_name_code(word) for word in ("resnet18", "timm:vit_tiny", "hf:bert", r"C:\net.pt")]
    [False, False, False, False]
    >>> [may_name_code(word) for word in ("net.py", "net.py:Net", "nets:Net", "plugin:NAME")]
    [True, True, True, True]
    """
    prefix = _PREFIX.fullmatch(word)
    if prefix and prefix["source"] in _PREFIXES:
        return False
    return may_name_function(word[2:] if re.match(r"[A-Za-z]:[\\/]", word) else word)


def can_be_imported(module: str) -> bool:
    """Whether there is a module of that name in the current folder or where Python looks."""
    top = module.partition(".")[0]
    beside = Path(top, "__init__.py"), Path(f"{top}.py")
    try:
        return any(map(Path.is_file, beside)) or find_spec(top) is not None
    except ValueError:  # __main__, which is running
        return False


def _of_timm(word: str, name: str) -> ModelSpec:
    if not re.fullmatch(r"[\w.-]+", name):
        raise ModelError(f"{name!r} is no name of timm's.", "Write it as in timm:resnet18.")
    return ModelSpec(TIMM, word, "", name)


def _of_transformers(word: str, place: str) -> ModelSpec:
    path = Path(place).expanduser()
    if place.strip() and path.is_dir() and not (path / CONFIGURATION).is_file():
        raise ModelError(
            f"The folder {place!r} has no {CONFIGURATION}.",
            "Name a folder that save_pretrained wrote, or a configuration: hf:FOLDER/config.json.",
        )
    if not place.strip() or (not path.exists() and _NO_HUB_NAME.match(place)):
        near = _near_file(place, "Write it as in hf:FOLDER, hf:FOLDER/config.json or hf:NAME.")
        raise ModelError(f"There is no folder or file {place!r}.", near)
    folder = path.resolve().parent if path.is_file() else path.resolve()
    return ModelSpec(TRANSFORMERS, word, place, re.sub(r"[^\w.-]+", "_", folder.name) or "hf")


def _of_hub(word: str, name: str) -> ModelSpec:
    raise ModelError(
        f"hookscope does not open {word!r}: torch.hub runs whatever Python the repository holds.",
        "Read that code, keep a copy of it, and give it as FILE.py:NAME with --weights FILE.",
    )


def _of_plugin(word: str, prefix: str, name: str) -> ModelSpec:
    others = plugin_entry_points()
    if prefix in others:
        return ModelSpec(PLUGIN, word, prefix, re.sub(r"[^\w.-]+", "_", name) or prefix)
    near = did_you_mean(prefix, [*_PREFIXES, *others])
    raise ModelError(
        f"There is no source of models called {prefix!r}, and no module of that name.",
        f"{near} {MODEL_FORMS}".strip(),
    )


_PREFIXES = {"timm": _of_timm, "hf": _of_transformers, "hub": _of_hub}


@dataclass(frozen=True)
class FunctionSpec:
    """A function's word, taken apart.

    Attributes:
        word: as it was typed.
        home: the Python file, or the dotted name of a module.
        name: what the function is called there.
    """

    word: str
    home: str
    name: str

    @property
    def in_file(self) -> bool:
        """Whether ``home`` is a file rather than a module to import."""
        return self.home.endswith(".py")


def may_name_function(word: str) -> bool:
    """Whether a word that may be a name of something else has the form of a function's.

    >>> may_name_function("smooth_l1"), may_name_function("mine.py:margin")
    (False, True)
    """
    return ":" in word or word.endswith(".py")


def is_function_spec(word: str) -> bool:
    """Whether a word is ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``, there or not.

    >>> is_function_spec("data.py:batches"), is_function_spec("random:1x3")
    (True, False)
    """
    home, _, name = word.rpartition(":")
    return name.isidentifier() and bool(home.endswith(".py") or _MODULE.fullmatch(home))


def parse_function(word: str) -> FunctionSpec:
    """Take ``FILE.py:FUNCTION`` or ``package.module:FUNCTION`` apart; a file must be there.

    Raises:
        RequestError: the word has another form, or names a missing file.

    Example:
        >>> parse_function("mine.losses:margin")
        FunctionSpec(word='mine.losses:margin', home='mine.losses', name='margin')
    """
    home, _, name = word.rpartition(":")
    in_file = home.endswith(".py")
    if not is_function_spec(word):
        form = f"{word}:FUNCTION" if word.endswith(".py") else "FILE.py:FUNCTION"
        raise RequestError(
            f"{word!r} names no function.", f"Write {form}, or package.module:FUNCTION."
        )
    if in_file and not Path(home).is_file():
        near = _near_file(home, "Check the name and the folder.")
        raise RequestError(f"There is no file {home!r}.", near)
    return FunctionSpec(word, home, name)


def reject_path(word: str) -> None:
    """Raise ModelError, saying what it is, if ``word`` is an existing file or folder."""
    if Path(word).is_dir():
        ours = Path(word, CONFIGURATION).is_file()
        repair = f"With transformers it is one: hf:{word}" if ours else MODEL_FORMS
        raise ModelError(f"{word!r} is a folder, not a model.", repair)
    if Path(word).is_file():
        kind, repair = describe_file(word)
        raise ModelError(f"{word!r} is {kind}, not a model by itself.", repair)


def is_weights_file(word: str) -> bool:
    """Whether a weights word means a file or folder rather than a name."""
    typed = _WEIGHTS_FILE.fullmatch(word) or "/" in word or os.sep in word
    return bool(typed) or Path(word).exists()


def check_weights_file(path: str) -> WeightFiles:
    """Return the files of weights that ``path`` means; see ``shards.find``.

    Raises:
        RequestError: ``path`` is missing, or a folder without weights.
        WeightsFileError: it is the index of a set that is damaged or not complete.
    """
    if not Path(path).exists():
        near = _near_file(path, "Check the name and the folder.")
        raise RequestError(f"There is no file of weights {path!r}.", near)
    return find_weight_files(path)


def end_sentence(text: str) -> str:
    """Return ``text`` with a full stop after it, unless it ends like a sentence already.

    >>> ended("no data!"), ended("too short"), ended("too short.")
    ('no data!', 'too short.', 'too short.')
    """
    return text if text.endswith((".", "!", "?")) else f"{text}."


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


def parse_assignments(pairs: Iterable[str]) -> dict[str, CommandLineText]:
    """Read ``KEY=VALUE`` pairs; a value stays as typed until the receiver's parameter is known.

    Raises:
        RequestError: a pair has no ``=``, a key is no Python name, or a key comes twice.

    >>> parse_assignments(["width=8", "act=relu"])
    {'width': '8', 'act': 'relu'}
    """
    values: dict[str, CommandLineText] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise RequestError(f"{pair!r} is not KEY=VALUE.", "Write it as in width=8.")
        if key in values:
            raise RequestError(f"{key!r} is given twice.", "Give each key once.")
        values[key] = CommandLineText(value)
    return values


def parse_prefixes(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``OLD=NEW`` pairs of prefixes of dotted names; either may be empty.

    Raises:
        RequestError: a pair has no ``=``, or a prefix comes twice.

    >>> parse_prefixes(["backbone.=features", "head="])
    {'backbone': 'features', 'head': ''}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        old, new = old.strip("."), new.strip(".")
        if not equals:
            raise RequestError(f"{pair!r} is not OLD=NEW.", "Write it as in backbone=features.")
        if old in found:
            raise RequestError(f"{old!r} is given twice.", "Give each prefix once.")
        found[old] = new
    return found


def _near_file(path: str, otherwise: str = MODEL_FORMS) -> str:
    folder = Path(path).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return did_you_mean(Path(path).name, names) or otherwise


PLUGIN_GROUP = "hookscope.sources"


def plugin_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points by the prefix that each is for; none of them is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=PLUGIN_GROUP)}
