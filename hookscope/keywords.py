"""From the keywords of a verb to a run that is ready, and to what its metadata say of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hookscope.captures import Capture
from hookscope.changes import Plan
from hookscope.edits.plan import bind as bind_edits
from hookscope.edits.words import read_edits, refuse_idle_comparison, refuse_second_order
from hookscope.errors import HookError, RequestError
from hookscope.own_hooks.binding import bind as bind_hooks
from hookscope.own_hooks.binding import find as find_hooks
from hookscope.prepare import Prepared, prepare
from hookscope.provenance import describe_run
from hookscope.records import ONLY_PYTHON

# The keywords that say which model is loaded and how.
LOADING = ("weights", "rename", "partial", "model_args", "method", "attn", "trust")


def prepared_for(verb: str, given: Mapping[str, Any]) -> Prepared:
    """Make ready what the keywords of a verb name: model, input, layers, edits and hooks."""
    values = read_edits(given.get("edits", ()))
    gradients = read_edits(given.get("grad_edits", ()), gradients=True)
    refuse_idle_comparison(given.get("compare", False), values, gradients, given.get("hooks", ()))
    kinds, arguments = given.get("hook_kind", ()), given.get("hook_args") or {}
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    refuse_second_order(given.get("penalty"), gradients, kinds)
    hooks = find_hooks(given.get("hooks", ()), kinds, arguments, verb=verb)
    selection = {name: several(given[name]) for name in ("layers", "types")}
    recipe = {name: given[name] for name in ("shape", "preprocess", "size", "mean", "std")}
    run = ("seed", "dtype", "device", "train")
    prepared = prepare(
        given["model"],
        given["input"],
        selection={**selection, "depth": given["depth"], "leaves": given["leaves"]},
        recipe=recipe,
        loading={name: given[name] for name in LOADING},
        **{name: given[name] for name in run},
        device_map=given.get("device_map"),
        max_memory=given.get("max_memory"),
        steps=given.get("generate"),
    )
    word, module = prepared.loaded.word, prepared.module
    plan = Plan(
        bind_edits(module, values, word),
        bind_edits(module, gradients, word),
        bind_hooks(hooks, module, prepared.layers, word),
    )
    return replace(prepared, plan=plan)


class Telling:
    """Makes the metadata of a run. An error of a user's hook in its block carries the recording.

    ``capture`` is to be set once there is one: the hook may fail in a later run that only checks.
    """

    def __init__(self, verb: str, prepared: Prepared, options: Mapping[str, Any]) -> None:
        self.origin = partial(describe_run, verb, prepared, options)
        self.capture: Capture | None = None

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, HookError):
            return
        error.capture = error.capture or self.capture
        if error.capture is not None:
            error.capture.metadata = {**self.origin(), "failed": error.message}


def kinds_of(what: str | Iterable[str], known: Mapping[str, str]) -> set[str]:
    """The kinds of records that the words in ``what`` ask for.

    Raises:
        RequestError: a word is not among ``known``, or there is none.
    """
    words = [word.strip() for word in what.split(",")] if isinstance(what, str) else list(what)
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        wrong = repr(unknown[0]) if unknown else "Nothing"
        raise RequestError(f"{wrong} cannot be recorded.", f"Choose among {', '.join(known)}.")
    return {known[word] for word in words}


def several(words: str | os.PathLike[str] | Iterable[str]) -> list[str]:
    """The words given; a lone one, or a path, need not stand in a list."""
    return [os.fspath(words)] if isinstance(words, str | os.PathLike) else list(words)


def options_of(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The keywords whose values are not the defaults, as JSON can hold them."""
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    plain = {n: _plain(value) for n, value in given.items() if n not in ("model", "input")}
    return {name: value for name, value in plain.items() if value != _plain(defaults[name])}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {ONLY_PYTHON: type(value).__name__}  # a word may read like any description
