"""Values for completion in the shell. Nothing here imports torch, and failures are ignored.

Layer names come from a small file for each model, which commands write to the cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from pathlib import Path

    import click
    from click.shell_completion import CompletionItem

    from hookscope.stores.runs.series import Series


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem[str]]:
    """Return the items of those names that begin like the incomplete word."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the models of the bundled list, those of a source before a colon, or else files."""
    from click.shell_completion import CompletionItem

    from hookscope.specs.catalog import bundled_models
    from hookscope.specs.literal_arguments import split_call

    called, call = split_call(f"{incomplete})")  # the call is not finished
    source, colon, _ = called.rpartition(":") if call else incomplete.rpartition(":")
    if call:
        names = _arguments_of(source, called, incomplete)
    else:
        names = _models_of(source) if colon else [model.name for model in bundled_models()]
    return _items(names, incomplete) or [CompletionItem(incomplete, type="file")]


def weights(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer ``random``, ``default``, the pretrained weights of the model, and files."""
    from click.shell_completion import CompletionItem

    from hookscope.specs.catalog import bundled_models

    model = _source_on_line(ctx)
    named = [name for info in bundled_models() if info.name == model for name in info.weights]
    choices = ["random", *(["default"] if named else []), *named]
    # The type file comes first: bash ignores what precedes it.
    return [CompletionItem(incomplete, type="file"), *_items(choices, incomplete)]


def help_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the names of the commands and help topics."""
    from hookscope.cli.commands import commands_of
    from hookscope.cli.help_topics import TOPICS

    return _items([*commands_of(ctx), *TOPICS], incomplete)


def layers(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer layer names of the model that earlier commands stored, or of a training run."""
    sign = "!" if incomplete.startswith("!") else ""
    source = _source_on_line(ctx)
    layers = [name for name, _ in _recall(source)] or [one.module for one in _series_in(source)]
    return _items((f"{sign}{name}" for name in dict.fromkeys(layers) if name), incomplete)


def types(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the types of those layers."""
    matches = dict.fromkeys(type_ for _, type_ in _recall(_source_on_line(ctx)))
    return _items(matches, incomplete)


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the keys in the file, from its header, or those of a training run or of weights."""
    from hookscope.files.safetensors_header import METADATA, header_of

    names = {one.key for one in _series_in(_source_on_line(ctx))}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        names |= {name for name in header_of(ctx.params["file"])[0] if name != METADATA}
    if not names:
        from hookscope.errors import HookscopeError
        from hookscope.stores.weights.open_weights import is_weights, open_weights

        with suppress(HookscopeError, OSError, KeyError):
            names |= (
                set(open_weights(ctx.params["file"])) if is_weights(ctx.params["file"]) else set()
            )
    return _items(sorted(names), incomplete)


def remember_layers(model: str, layers: Iterable[tuple[str, str]], complete: bool) -> None:
    """Store the names and types of a model's layers for completion."""
    matches = dict(layers) if complete else dict(_recall(model)) | dict(layers)
    text = "".join(f"{name}\t{type_}\n" for name, type_ in matches.items())
    path = _cache_file(model)
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(text.encode())
        unfinished.replace(path)
    except (OSError, UnicodeError):
        return  # a full disk or a read-only home must not fail a command


def _models_of(source: str) -> list[str]:
    """Return the specs that begin with a source and a colon. No code of the user runs."""
    if source == "timm":
        names = _names_in_timm()
    elif source == "hf":
        names = _downloaded_models()
    else:
        names = _names_in_file(source) if source.endswith(".py") else []
    return [f"{source}:{name}" for name in names]


def _names_in_file(path: str) -> list[str]:
    """Return the classes and functions that a Python file defines for others."""
    return [name for name in _definitions(path) if not name.startswith("_")]


def _definitions(path: str) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """Return the classes and functions of a Python file by name. It is not run."""
    import ast
    from pathlib import Path

    try:
        nodes = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    definitions = (ast.ClassDef, ast.FunctionDef)
    return {node.name: node for node in nodes if isinstance(node, definitions)}


def _arguments_of(path: str, called: str, incomplete: str) -> list[str]:
    """Return an unfinished call with the name of each further parameter, as in ``Net(width=``."""
    import ast

    node = _definitions(path).get(called.removeprefix(f"{path}:"))
    if isinstance(node, ast.ClassDef):
        methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
        node = next((each for each in methods if each.name == "__init__"), None)
    if not isinstance(node, ast.FunctionDef):
        return []
    begun = incomplete[: max(incomplete.rfind(mark) for mark in "(, ") + 1]
    parameters = (one.arg for one in (*node.args.args, *node.args.kwonlyargs))
    return [f"{begun}{name}=" for name in parameters if name != "self"]


def _names_in_timm() -> list[str]:
    """Return the models that the source of timm registers; importing it would take seconds."""
    import re
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("timm")
    if spec is None or not spec.origin:
        return []
    try:
        sources = [path.read_bytes() for path in Path(spec.origin).parent.glob("models/*.py")]
    except OSError:
        return []
    names = (re.findall(rb"^@register_model\s+def (\w+)", text, re.MULTILINE) for text in sources)
    return sorted(name.decode() for file in names for name in file)


def _downloaded_models() -> list[str]:
    """Return the models in the cache of huggingface_hub."""
    from pathlib import Path

    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    folder = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    try:
        found = sorted(path.name for path in Path(folder).glob("models--*"))
    except OSError:
        return []
    return [name.removeprefix("models--").replace("--", "/") for name in found]


def _recall(model: str) -> list[tuple[str, str]]:
    try:
        lines = _cache_file(model).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return []
    return [(name, type_) for name, _, type_ in (line.partition("\t") for line in lines)]


def _series_in(folder: str) -> list[Series]:
    """Return what was measured in a training run; nothing if it is not a run folder."""
    from pathlib import Path

    from hookscope.errors import ResultsFileError
    from hookscope.files.output_path import is_run_folder, rank_folders

    try:
        if not is_run_folder(folder):
            return []
    except ResultsFileError:
        return []
    from hookscope.stores.runs.run_info import SERIES_FILE, read_lines
    from hookscope.stores.runs.series import Series

    try:
        ranks = rank_folders(folder)
        return read_lines(Path(ranks[0] if ranks else folder, SERIES_FILE), Series)
    except (ResultsFileError, OSError):
        return []


def _source_on_line(ctx: click.Context) -> str:
    """Return the model, file or folder that a command is about."""
    given = map(ctx.params.get, ("model", "a", "file", "features"))
    return next(filter(None, given), "resnet18")


def _cache_file(model: str) -> Path:
    """Return the file of a model. A Python file is identified by its absolute path."""
    from hashlib import sha256

    from hookscope.files.cache_folder import cache_folder
    from hookscope.specs.literal_arguments import split_call

    spec, call = split_call(model)
    path, colon, name = spec.rpartition(":")
    if path.endswith(".py") or spec.endswith(".py"):
        model = f"{os.path.abspath(path or spec)}{colon}{name if colon else ''}{call}"
    return cache_folder() / "layers" / f"{sha256(os.fsencode(model)).hexdigest()[:32]}.txt"


VARIABLE = "_HOOKSCOPE_COMPLETE"  # the script sets it when it asks for completions
