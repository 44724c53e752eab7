"""The call of a function of Python that a command line stands for, and its result as JSON.

The keywords are read from the words by the types of the keywords alone, without the readers of the
command line.
"""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import hookscope
from hookscope.cli.main import cli
from hookscope.model_analysis.cams.overlay import save_overlay
from hookscope.results.result import Result
from hookscope.specs.settings import Setting
from hookscope.views import display
from hookscope.views.display import make_document
from hookscope.views.models import models_document

# The commands that have a function of the same name.
FUNCTIONS = [name for name in cli.commands if callable(getattr(hookscope, name, None))]


def call_of(name: str, line: str, texts: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """The positional and other arguments of the function that a command line stands for.

    With ``texts``, what the command line parses is left as it is typed.
    """
    command, function = cli.commands[name], getattr(hookscope, name)
    settings = getattr(function, "settings", {})
    flags = {
        flag: param for param in command.options() for flag in (*param.opts, *param.secondary_opts)
    }
    places, given = [], {}
    words = iter(shlex.split(line))
    for word in words:
        if word not in flags:
            places.append(word)
            continue
        param = flags[word]
        if param.is_flag:
            given[param.name] = True
        else:
            given.setdefault(param.name, []).append(next(words))
    return places, {
        key: value
        if isinstance(value, bool)
        else python_value(settings.get(key), type_of(name, key), value, texts)
        if key in inspect.signature(function).parameters
        else value[-1]
        for key, value in given.items()
    }


def type_of(name: str, key: str) -> str:
    return str(inspect.signature(getattr(hookscope, name)).parameters[key].annotation)


def python_value(about: Setting | None, kind: str, texts: list[str], typed: bool) -> Any:
    """What a Python programmer writes for these texts; a text that does not fit stays one."""
    if typed and about is not None and (about.collect or about.parse or about.commas):
        return texts if about.collect or about.many else texts[-1]
    if about is not None and about.collect is not None:
        if "Mapping" in kind:
            pairs = (text.split("=", 1) for text in texts)
            return {key: int(value) if value.isdecimal() else value for key, value in pairs}
        return texts
    if about is not None and about.commas:
        return [word for text in texts for word in text.split(",")]
    values = [_plain_value(kind, text) for text in texts]
    many = about is not None and about.many and about.callback != "one_layer"
    return values if many else values[-1]


def _plain_value(kind: str, text: str) -> Any:
    numbers = {"int": int, "float": float}
    if found := re.fullmatch(r"(\d)-(\d)", text):
        return tuple(range(int(found[1]), int(found[2]) + 1))
    parts = text.split("x") if "x" in text and text != "x" else text.split(",")
    for name, read in numbers.items():
        try:
            if re.match(rf"{name}\b", kind) and "str" not in kind and len(parts) == 1:
                return read(text)
            if f"Sequence[{name}]" in kind or f"tuple[{name}" in kind:
                return tuple(map(read, parts))
        except ValueError:
            return text
    return text


def called(
    name: str, line: str, written: str | None = None, texts: bool = False, model: Any = None
) -> Any:
    """Call a function, and save its result where the command did; ``model`` replaces the source."""
    places, given = call_of(name, line, texts)
    if model is not None:
        places[0] = model
    parameters = inspect.signature(getattr(hookscope, name)).parameters
    folder = given.pop("folder", None)
    for key in set(given) - set(parameters):
        del given[key]  # says what the terminal shows, or where the result is written
    if name == "capture":
        given.setdefault("stop", None)  # the only default that differs
    if "output" in parameters:
        given["output"] = written
    elif "file" in parameters and name not in ("plot", "report"):
        given["file"] = written
    elif "folder" in parameters and folder is not None:
        given["folder"] = folder
    result = getattr(hookscope, name)(*places, **given)
    if written is not None and not Path(written).exists():
        result.save(written)
    if name == "cam" and (picture := written_in(line)):
        save_overlay(result, picture)
    return result


def written_in(line: str) -> str | None:
    """The file that a line names as its output."""
    words = shlex.split(line)
    return words[words.index("-o") + 1] if "-o" in words else None


def document_of(name: str, result: Any, file: Any) -> Any:
    """What ``--json`` says of a result of Python."""
    if name == "models":
        return models_document(result)
    if name == "extract":
        folder = file if file is not None else str(result.location)
        return make_document(name, {**result.manifest, **result.summary(), "folder": folder})
    if name == "export":
        return make_document(name, result.to_json())
    if name == "filters" or (name == "plot" and not isinstance(result, Result)):
        return make_document(name, {"file": file, "kind": result.kind, "shows": result.shows})
    if name == "report":
        about = {key: value for key, value in vars(result).items() if key != "html"}
        return make_document(name, {"file": file, "bytes": Path(file).stat().st_size, **about})
    document = display.document(result, file)
    return document if name != "cam" else {**document, "picture": file and f"{file[:-12]}.png"}


TIMES = {"milliseconds", "start", "time", "own", "share", "own_share", "hooks"}
TIMES |= {"waited_for_read", "waited_for_forward", "waited_for_write"}


def without_times(value: Any) -> Any:
    """A document without the times in it."""
    if isinstance(value, dict):
        plain = {k: without_times(v) for k, v in value.items() if k not in TIMES}
        for key in ("model_args", "opt_args"):  # texts on the command line
            if plain.get(key):
                plain[key] = {name: str(one) for name, one in plain[key].items()}
        return plain
    return [without_times(one) for one in value] if isinstance(value, list) else value
