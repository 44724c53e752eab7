"""Values for arguments by name or position, put together to one call of the model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from hookscope.errors import InputError
from hookscope.files.signatures import signature_of
from hookscope.files.suggestions import did_you_mean
from hookscope.inputs.input_reader import Batch
from hookscope.sources.loaded import LoadedModel
from hookscope.tensors.nested import as_call

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def assemble_call(loaded: LoadedModel, results: Sequence[tuple[str | int | None, Batch]]) -> Any:
    """Return the call value of results, each for a name or a position, or a call value itself."""
    args: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for place, result in results:
        unnamed, named = as_call(result.value) if place is None else ((), {})
        for position, value in enumerate(unnamed):
            _put(args, position, value)
        for name, value in named.items():
            _put(kwargs, str(name), value)
        if isinstance(place, int):
            _put(args, place, result.value)
        elif place is not None:
            _put(kwargs, place, result.value)
    missing = next((n for n in range(len(args)) if n not in args), None)
    if missing is not None:
        raise InputError(
            f"Position {max(args)} is given, but position {missing} is missing.",
            "Positions start at 0 and cannot be skipped; names can come in any order.",
        )
    positional = tuple(args[n] for n in range(len(args)))
    _check_callable(loaded, positional, kwargs)
    if kwargs:
        return (positional, kwargs) if positional else kwargs
    if len(positional) == 1 and not isinstance(positional[0], tuple | dict):
        return positional[0]
    return (positional, {})


def takes_one_argument(loaded: LoadedModel) -> bool:
    """Whether the signature of the model has at most one required positional argument."""
    signature = _signature(loaded)
    if signature is None:
        return True
    needed = [
        p for p in signature.parameters.values() if p.kind in _POSITIONAL and p.default is p.empty
    ]
    return len(needed) <= 1


def _put(arguments: dict[Any, Any], place: Any, value: Any) -> None:
    if place in arguments:
        raise InputError(
            f"Argument {place!r} is given twice.", "Give each argument by one name or position."
        )
    arguments[place] = value


def _check_callable(loaded: LoadedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = _signature(loaded)
    if signature is None:
        return
    parameters = signature.parameters
    names = list(parameters)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in kwargs if name not in names]
    takes = f"It takes {', '.join(names) or 'no arguments'}."
    if unknown and not open_ended:
        near = did_you_mean(unknown[0], names)
        raise InputError(
            f"{loaded.spec} has no argument {unknown[0]!r}.",
            f"{near} {takes} FILE:KEY is one tensor of a file; NAME=FILE sets an argument.".strip(),
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        raise InputError(
            f"{loaded.spec} cannot be called with these inputs: {exc}.",
            f"{takes} Name each: --input {names[0] if names else 'NAME'}=FILE.",
        ) from exc


def _signature(loaded: LoadedModel) -> inspect.Signature | None:
    try:
        return signature_of(loaded.module.forward)
    except (TypeError, ValueError):
        return None
