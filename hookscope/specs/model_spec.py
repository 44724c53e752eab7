"""The specs of models and functions. Torch-free."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.errors import ModelError, RequestError
from hookscope.files import file_types, suggestions
from hookscope.files.file_types import EXPORT_ARCHIVE, MODEL_FORMS, SCRIPT_ARCHIVE, describe_file
from hookscope.files.output_path import holds_features, is_hookscope_file, is_run_folder
from hookscope.files.shell_words import quote_word
from hookscope.files.weight_files import WeightFiles, find_weight_files
from hookscope.specs.literal_arguments import LiteralArguments, parse_arguments, split_call

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TORCHVISION, FILE, MODULE = "torchvision", "file", "module"
TORCHSCRIPT, EXPORTED, ONNX = "torchscript", "exported", "onnx"
PICKLED = "pickled"
TIMM, TRANSFORMERS, PLUGIN = "timm", "hf", "plugin"
LIVE = "live"  # a module that the caller passed
PLUGIN_GROUP = "hookscope.sources"  # the entry points that other packages register
CONFIGURATION = "config.json"  # the file that a folder of transformers must have
# A drive letter is not a source: `C:\nets\mine.py:Net` splits at its last colon only.
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_IN_MODULE = re.compile(rf"(?P<path>{_MODULE.pattern}):(?P<name>([^\W\d]\w*)?)")
_PYTHON_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:/\\]*))?", re.DOTALL)
_MODEL_FILE = re.compile(r".+\.(py|pt|pth|pt2|ts|ckpt|bin|pkl|safetensors|onnx)")
_PREFIX = re.compile(r"(?P<source>\w{2,}):(?P<rest>(?!\\).*)", re.DOTALL)
_NO_HUB_NAME = re.compile(r"[./~]|.*\\|.*\.json$|.*/.*/", re.DOTALL)  # organisation/name at most
_WEIGHTS_FILE = re.compile(
    r".+\.(safetensors|pth|pt|bin|ckpt|index\.json)", re.DOTALL | re.IGNORECASE
)
_COPY_FIRST = "Save its content to a file, and name that file."
_SOURCES = {  # by type of file
    SCRIPT_ARCHIVE: TORCHSCRIPT,
    EXPORT_ARCHIVE: EXPORTED,
    file_types.ONNX: ONNX,
}


@dataclass(frozen=True)
class ModelSpec:
    """The parsed spec of a model."""

    source: str
    text: str
    path: str
    name: str
    arguments: LiteralArguments = field(default_factory=LiteralArguments)

    @property
    def stem(self) -> str:
        """What the names of files made of this model begin with."""
        return self.name or (
            self.path.rpartition(".")[2] if self.source == MODULE else Path(self.path).stem
        )


def parse_model(text: str, trust: bool = False) -> ModelSpec:
    """Parse the spec of a model; with ``trust`` a pickled model is one, which runs its code."""
    called, call = split_call(text)
    if call:
        spec = replace(parse_model(called), text=text, arguments=parse_arguments(called, call))
        if spec.arguments.positional and spec.source not in (FILE, MODULE):
            raise ModelError(
                f"{text!r} has an argument without a name.", f"Write it as in {called}(KEY=VALUE)."
            )
        return spec
    if text.isidentifier():  # even if a file or folder of that name exists
        return ModelSpec(TORCHVISION, text, "", text)
    if not text.strip():
        raise ModelError("The name of the model is empty.", MODEL_FORMS)
    python = _PYTHON_FILE.fullmatch(text)
    if python:
        path, name = python["path"], python["name"]
        if not Path(path).is_file():
            near = suggestions.near_files(path, MODEL_FORMS, suggestions.PYTHON_FILES)
            raise ModelError(f"There is no file {path!r}.", near)
        if name is not None and not name.isidentifier():
            raise ModelError(
                f"{name!r} is not a valid Python name.", f"Write {path}:NAME or {path}:NAME(5)."
            )
        return ModelSpec(FILE, text, path, name or "")
    if Path(text).is_file() and (source := _source_of_file(text, trust)):
        name = re.sub(r"[^\w-]+", "_", Path(text).stem).strip("_-")
        return ModelSpec(source, text, text, name or source)
    reject_path(text)
    prefix = _PREFIX.fullmatch(text)
    if prefix and prefix["source"] in _PREFIXES:
        return _PREFIXES[prefix["source"]](text, prefix["rest"])
    module = _IN_MODULE.fullmatch(text)
    if module and ("." in module["path"] or can_be_imported(module["path"])):
        return ModelSpec(MODULE, text, module["path"], module["name"])
    if prefix:
        return _of_plugin(text, prefix["source"], prefix["rest"])
    if "/" in text or "\\" in text or _MODEL_FILE.fullmatch(text):
        noun = "file" if Path(text).suffix else "file or folder"
        near = suggestions.near_files(text, MODEL_FORMS, suggestions.MODEL_FILES)
        raise ModelError(f"There is no {noun} {text!r}.", near)
    return ModelSpec(TORCHVISION, text, "", text)


def _source_of_file(path: str, trust: bool) -> str:
    """The source for a file of this content; empty if it is not a model."""
    kind = describe_file(path)[0]
    if trust and file_types.is_pickled_object(kind):
        return PICKLED
    return _SOURCES.get(kind, "")


def may_name_code(text: str) -> bool:
    r"""Whether the spec of a model may name Python code or a plugin. No file is read.

    >>> [may_name_code(spec) for spec in ("resnet18", "timm:vit_tiny", "hf:bert", r"C:\net.pt")]
    [False, False, False, False]
    >>> [may_name_code(spec) for spec in ("net.py", "net.py:Net", "nets:Net", "plugin:NAME")]
    [True, True, True, True]
    """
    prefix = _PREFIX.fullmatch(text)
    if prefix and prefix["source"] in _PREFIXES:
        return False
    return may_name_function(text[2:] if re.match(r"[A-Za-z]:[\\/]", text) else text)


def can_be_imported(module: str) -> bool:
    """Whether a module of that name is in the working folder or on Python's path."""
    top = module.partition(".")[0]
    beside = Path(top, "__init__.py"), Path(f"{top}.py")
    try:
        return any(map(Path.is_file, beside)) or find_spec(top) is not None
    except ValueError:  # __main__, which is running
        return False


def _of_timm(text: str, name: str) -> ModelSpec:
    if not re.fullmatch(r"[\w.-]+", name):
        raise ModelError(
            f"{name!r} is not a valid name of a timm model.", "Write it as in timm:resnet18."
        )
    return ModelSpec(TIMM, text, "", name)


def _of_transformers(text: str, place: str) -> ModelSpec:
    path = Path(place).expanduser()
    if place.strip() and path.is_dir() and not (path / CONFIGURATION).is_file():
        raise ModelError(
            f"The folder {place!r} has no {CONFIGURATION}.",
            "Name a folder that save_pretrained wrote, or a configuration: hf:FOLDER/config.json.",
        )
    if not place.strip() or (not path.exists() and _NO_HUB_NAME.match(place)):
        forms = "Write it as in hf:FOLDER, hf:FOLDER/config.json or hf:NAME."
        near = suggestions.near_files(place, forms, suggestions.MODEL_FOLDERS)
        raise ModelError(f"There is no folder or file {place!r}.", near)
    folder = path.resolve().parent if path.is_file() else path.resolve()
    return ModelSpec(TRANSFORMERS, text, place, re.sub(r"[^\w.-]+", "_", folder.name) or "hf")


def _of_hub(text: str, name: str) -> ModelSpec:
    raise ModelError(
        f"hookscope does not open {text!r}: torch.hub runs Python code from the repository.",
        "Download the code, review it, and give it as FILE.py:NAME with --weights FILE.",
    )


def _of_plugin(text: str, prefix: str, name: str) -> ModelSpec:
    others = plugin_entry_points()
    if prefix in others:
        return ModelSpec(PLUGIN, text, prefix, re.sub(r"[^\w.-]+", "_", name) or prefix)
    near = suggestions.did_you_mean(prefix, [*_PREFIXES, *others])
    raise ModelError(
        f"There is no source of models called {prefix!r}, and no module of that name.",
        f"{near} {MODEL_FORMS}".strip(),
    )


_PREFIXES = {"timm": _of_timm, "hf": _of_transformers, "hub": _of_hub}


@dataclass(frozen=True)
class FunctionSpec:
    """The parsed spec of a function."""

    text: str
    home: str
    name: str

    @property
    def in_file(self) -> bool:
        """Whether ``home`` is a file rather than a module to import."""
        return self.home.endswith(".py")


def may_name_function(text: str) -> bool:
    """Whether a text that may be another name has the form of the spec of a function.

    >>> may_name_function("smooth_l1"), may_name_function("mine.py:margin")
    (False, True)
    """
    return ":" in text or text.endswith(".py")


def is_function_spec(text: str) -> bool:
    """Whether a text has the form ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``.

    >>> is_function_spec("data.py:batches"), is_function_spec("random:1x3")
    (True, False)
    """
    home, _, name = text.rpartition(":")
    return name.isidentifier() and bool(home.endswith(".py") or _MODULE.fullmatch(home))


def parse_function(text: str) -> FunctionSpec:
    """Parse ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``; the file must exist.

    >>> parse_function("mine.losses:margin")
    FunctionSpec(text='mine.losses:margin', home='mine.losses', name='margin')
    """
    home, _, name = text.rpartition(":")
    in_file = home.endswith(".py")
    if not is_function_spec(text):
        form = f"{text}:FUNCTION" if text.endswith(".py") else "FILE.py:FUNCTION"
        raise RequestError(
            f"{text!r} does not name a function.", f"Write {form}, or package.module:FUNCTION."
        )
    if in_file and not Path(home).is_file():
        near = suggestions.near_files(
            home, "Check the name and the folder.", suggestions.PYTHON_FILES
        )
        raise RequestError(f"There is no file {home!r}.", near)
    return FunctionSpec(text, home, name)


def reject_path(text: str) -> None:
    """Raise ModelError that describes the file or folder ``text`` if there is one."""
    if Path(text).is_dir():
        ours = Path(text, CONFIGURATION).is_file()
        if is_run_folder(text) or holds_features(text):
            show = f"Show its content: hookscope show {quote_word(text)}"
            raise ModelError(f"{text!r} is a folder of results, not a model.", show)
        if ours:
            repair = f"To open it with transformers, write {quote_word(f'hf:{text}')}"
            raise ModelError(f"{text!r} is a folder, not a model.", repair)
        raise ModelError(
            f"{text!r} is a folder without weights, not a model.", file_types.WEIGHT_FORMS
        )
    if Path(text).is_file():
        if is_hookscope_file(Path(text)):
            show = f"Show its content: hookscope show {quote_word(text)}"
            raise ModelError(f"{text!r} is a capture, not a model.", show)
        kind, repair = describe_file(text)
        if file_types.is_pickled_object(kind):
            repair = f"{repair}{_offer_of_trust(text)}"
        raise ModelError(f"{text!r} is {kind}, not a model.", repair)
    if Path(text).exists():
        raise ModelError(f"{text!r} is a pipe or a device, not a model.", _COPY_FIRST)


def _offer_of_trust(path: str) -> str:
    """A sentence that names ``--trust``; empty if the file names a function that runs commands."""
    from hookscope.files.pickle_scan import dangerous_globals, list_globals

    with open(path, "rb") as file:
        if dangerous_globals(list_globals(file)):
            return ""
    return " Add --trust if you trust its author: it opens the file and runs its code."


def is_weights_file(text: str) -> bool:
    """Whether the value of ``--weights`` is a file or folder rather than a name.

    ``random`` and ``default`` are names, even if a file or folder of that name exists.
    """
    if text in ("random", "default"):
        return False
    typed = _WEIGHTS_FILE.fullmatch(text) or "/" in text or os.sep in text
    return bool(typed) or Path(text).exists()


def check_weights_file(path: str) -> WeightFiles:
    """Return the weights files that ``path`` stands for; see ``find_weight_files``."""
    if not Path(path).exists():
        near = suggestions.near_files(path, "Check the name and the folder.", _WEIGHTS_FILE)
        raise RequestError(f"There is no weights file {path!r}.", near)
    if not (Path(path).is_file() or Path(path).is_dir()):
        raise RequestError(f"{path!r} is a pipe or a device, not a file.", _COPY_FIRST)
    return find_weight_files(path)


def end_sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it already ends like a sentence.

    >>> [end_sentence(text) for text in ("no data!", "too short", "too short.")]
    ['no data!', 'too short.', 'too short.']
    """
    return text if text.endswith((".", "!", "?")) else f"{text}."


def plugin_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of ``PLUGIN_GROUP`` by prefix, unimported. It takes 50 ms."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=PLUGIN_GROUP)}
