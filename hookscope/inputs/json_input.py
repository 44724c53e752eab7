"""Nested arguments in JSON: an object holds arguments by name, a list by position."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from hookscope.errors import InputError
from hookscope.inputs.input_reader import (
    ReadContext,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
)
from hookscope.specs.input_spec import JSON, TENSORS, InputSpec, parse_inputs
from hookscope.specs.model_spec import end_sentence

_FORMS = 'A tensor is {"file": "a.npy"} or {"tensor": [[1, 2]]}; other values stay as they are.'
_IN_FILES = 'Put numbers into files of their own: {"file": "a.npy"}.'
_DEPTH = 100
_MOST = 16 << 20  # bytes; as Python's objects JSON may take 30 times as much
_VALUES = 100_000  # besides those in tensors


def read_json_input(
    asked: ReadContext, word: InputSpec, open_kind: Callable[[str], Any]
) -> tuple[Any, str | None]:
    """Return what a JSON file says, with the tensors that it names.

    Where it names other files its own hash would say nothing of the tensors, and there is none.

    Args:
        asked: the model and the choices.
        word: the file.
        open_kind: gives the reader of a kind of tensors.

    Raises:
        InputError: it is no JSON, or a tensor in it cannot be made.
    """
    data = read_bytes(word.path, _MOST, _IN_FILES)
    with decoding_errors(word.path, "JSON"):
        told = json.loads(data.decode("utf-8-sig"))
    folder = os.path.dirname(word.path)
    named: list[str] = []
    values = 0

    def build(value: Any, depth: int) -> Any:
        nonlocal values
        if depth > _DEPTH:
            raise InputError(f"{describe_path(word.path)} is nested too deep.", _FORMS)
        values += 1
        if values > _VALUES:
            raise InputError(
                f"{describe_path(word.path)} holds more than {_VALUES:,} values besides tensors.",
                _FORMS,
            )
        if isinstance(value, list):
            return [build(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"file"}:
            return _from_file(value["file"])
        if set(value) == {"tensor"}:
            return _inline(value["tensor"], word)
        return {key: build(item, depth + 1) for key, item in value.items()}

    def _from_file(name: Any) -> Any:
        try:
            if not isinstance(name, str):
                raise InputError(f"{name!r} names no file.", _FORMS)
            near = os.path.join(folder, name)
            one, *more = parse_inputs([near if os.path.exists(near.partition(":")[0]) else name])
            if more:
                raise InputError(f"{name!r} is several files, and one is wanted.", _FORMS)
            if one.kind not in TENSORS or one.kind == JSON:
                raise InputError(f"{name!r} is {one.kind}, and no file of tensors.", _FORMS)
            named.append(name)
            return open_kind(one.kind)(asked, one)[0]
        except (InputError, ValueError) as exc:
            raise InputError(
                f"{describe_path(word.path)}: {end_sentence(getattr(exc, 'message', str(exc)))}",
                getattr(exc, "hint", ""),
            ) from exc

    made = build(told, 0)
    made = tuple(made) if isinstance(made, list) and word.place is None else made
    return made, None if named else sha256(data)


def _inline(value: Any, word: InputSpec) -> torch.Tensor:
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as exc:
        raise InputError(
            f"{describe_path(word.path)} holds a tensor that cannot be made: {end_sentence(str(exc))}",
            _FORMS,
        ) from exc
