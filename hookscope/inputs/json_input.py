"""Nested arguments in a JSON file: an object has arguments by name, a list by position."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from hookscope.errors import InputError
from hookscope.files.shell_words import quote_word
from hookscope.inputs.input_reader import (
    OpenTensor,
    ReadContext,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
)
from hookscope.specs.input_spec import JSON, TENSORS, InputSpec, parse_inputs
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.names_in_files import refused_name

_FORMS = 'A tensor is {"file": "a.npy"} or {"tensor": [[1, 2]]}; other values stay as they are.'
_IN_FILES = 'Put numbers into separate files: {"file": "a.npy"}.'
_MAX_DEPTH = 100
_MAX_BYTES = 16 << 20  # as Python objects, JSON may take 30 times the memory
_MAX_VALUES = 100_000  # outside of tensors


def read_json_input(
    context: ReadContext, spec: InputSpec, reader_of: Callable[[str], OpenTensor]
) -> tuple[Any, str | None]:
    """Return the value of a JSON file with the tensors that it names; a hash if it names none."""
    data = read_bytes(spec.path, _MAX_BYTES, _IN_FILES)
    with decoding_errors(spec.path, "JSON"):
        content = json.loads(data.decode("utf-8-sig"))
    tensors = _TensorsInJson(context, spec, reader_of)
    value = tensors.put_into(content)
    value = tuple(value) if isinstance(value, list) and spec.place is None else value
    return value, None if tensors.files_read else sha256(data)


class _TensorsInJson:
    """Replaces the objects of a JSON file that stand for tensors."""

    def __init__(
        self, context: ReadContext, spec: InputSpec, reader_of: Callable[[str], OpenTensor]
    ) -> None:
        self._context, self._spec, self._reader_of = context, spec, reader_of
        self._values = 0
        self.files_read = 0

    def put_into(self, value: Any, depth: int = 0) -> Any:
        """Return a value with its tensors."""
        path = self._spec.path
        if depth > _MAX_DEPTH:
            raise InputError(f"{describe_path(path)} is nested too deeply.", _FORMS)
        self._values += 1
        if self._values > _MAX_VALUES:
            raise InputError(
                f"{describe_path(path)} contains more than {_MAX_VALUES:,} values besides tensors.",
                _FORMS,
            )
        if isinstance(value, list):
            return [self.put_into(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"file"}:
            return self._read_file(value["file"])
        if set(value) == {"tensor"}:
            return _inline(value["tensor"], self._spec)
        return {key: self.put_into(item, depth + 1) for key, item in value.items()}

    def _read_file(self, name: Any) -> Any:
        path = self._spec.path
        try:
            if not isinstance(name, str):
                raise InputError(f"{name!r} is not the name of a file.", _FORMS)
            folder = os.path.dirname(path) or "."
            near = os.path.join(folder, name)
            named = near if os.path.exists(near.partition(":")[0]) else name
            if refused := refused_name("input", named, folder):
                raise InputError(
                    f"{name!r} {refused.why}, which a JSON file may not name.",
                    "Give it by its argument: --input NAME=" + quote_word(name),
                )
            inner, *more = parse_inputs([named])
            if more:
                raise InputError(
                    f"{name!r} matches several files, but only one is allowed.", _FORMS
                )
            if inner.kind not in TENSORS or inner.kind == JSON:
                raise InputError(f"{name!r} is {inner.kind}, not a file of tensors.", _FORMS)
            self.files_read += 1
            return self._reader_of(inner.kind)(self._context, inner)[0]
        except (InputError, ValueError) as exc:
            raise InputError(
                f"{describe_path(path)}: {end_sentence(getattr(exc, 'message', str(exc)))}",
                getattr(exc, "hint", ""),
            ) from exc


def _inline(value: Any, spec: InputSpec) -> torch.Tensor:
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as exc:
        raise InputError(
            f"{describe_path(spec.path)} contains an invalid tensor: {end_sentence(str(exc))}",
            _FORMS,
        ) from exc
