"""The inputs of an ONNX file: names, shapes and types, checked before a run, and examples."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.sources.onnx.dtypes import dtype_name, torch_dtype
from hookscope.sources.onnx.model_file import FileInput

_SUM = re.compile(r"[\w.]+(\s*\+\s*[\w.]+)+")
_NAME = re.compile(r"[^\W\d_]")  # a letter: `?`, `-1` and `*` name no length
_LARGEST = 1 << 30  # entries of an example input
_IMAGE_SIDE = 224  # height and width of an image if the file leaves them open


class GraphContract:
    """The inputs that a file takes. It is immutable: copies of a model share it."""

    def __init__(self, inputs: Sequence[FileInput], rows: Mapping[str, int], spec: str) -> None:
        self._inputs = tuple(inputs)
        self._rows, self._spec = dict(rows), spec

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphContract:
        return self

    @property
    def only_input(self) -> FileInput | None:
        """The input, if there is one alone, of floating-point numbers and known rank."""
        if len(self._inputs) != 1 or self._inputs[0].shape is None:
            return None
        if math.prod(self.shape_of(self._inputs[0])) > _LARGEST:
            return None  # example says so
        dtype = torch_dtype(self._inputs[0].dtype)
        return self._inputs[0] if dtype is not None and dtype.is_floating_point else None

    def feeds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensor of each input, converted to the precision or width of the file."""
        names = [value.name for value in self._inputs]
        if len(args) > len(names):
            raise InputError(
                f"{self._spec} takes {len(names)} inputs, but got {len(args)}.", self.takes()
            )
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                near = did_you_mean(name, names)
                raise InputError(
                    f"{self._spec} has no input {name!r}.", f"{near} {self.takes()}".strip()
                )
            if name in values:
                raise InputError(f"The input {name!r} is given twice.", "Give it once.")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise InputError(f"The input {missing[0]!r} is missing.", self.takes())
        sizes: dict[str, int] = {}
        return {
            value.name: self._checked(value, values[value.name], sizes) for value in self._inputs
        }

    def _checked(self, expected: FileInput, value: Any, sizes: dict[str, int]) -> Tensor:
        name = expected.name
        dtype = torch_dtype(expected.dtype)
        if dtype is None:
            kind = dtype_name(expected.dtype) if expected.dtype else "list or optional"
            raise InputError(
                f"The input {name!r} of {self._spec} is of type {kind}, which hookscope cannot give"
                " to onnxruntime.",
                f"hookscope tree {quote_word(self._spec)} lists the layers without a run.",
            )
        if not isinstance(value, Tensor):
            raise InputError(
                f"The input {name!r} must be a tensor, but got {type(value).__name__}.",
                self.takes(),
            )
        if _kind(value.dtype) != _kind(dtype):
            raise InputError(
                f"The input {name!r} must be {_name(dtype)}, but got {_name(value.dtype)}.",
                self.takes(),
            )
        fits = expected.shape is None or (
            value.ndim == len(expected.shape)
            and all(map(_fits, expected.shape, value.shape, [sizes] * value.ndim))
        )
        if not fits:
            wanted = f"have the shape {_text(expected.shape)}" if expected.shape else "be a scalar"
            raise InputError(
                f"The input {name!r} must {wanted}, but got {_text(tuple(value.shape))}.",
                "Give it that shape, or export the model with dynamic lengths (dynamic_shapes).",
            )
        return value.to(dtype)

    def takes(self) -> str:
        """Return a sentence with the name, the type and the shape of each input."""
        described = ", ".join(
            f"{value.name}: {dtype_name(value.dtype)}"
            + (f" {_text(value.shape)}" if value.shape else "")
            for value in self._inputs
        )
        return f"It takes {described or 'no inputs'}."

    def shape_of(self, value: FileInput) -> tuple[int, ...]:
        """Return a shape that fits an input: open lengths are 1, but 224 for sides of images."""
        lengths = value.shape or ()
        is_image = len(lengths) == 4 and lengths[1] in (1, 3) and value.dtype in (1, 10, 11)
        return tuple(
            _IMAGE_SIDE if is_image and n > 1 and not isinstance(length, int) else _default(length)
            for n, length in enumerate(lengths)
        )

    def example(self, seed: int) -> Any:
        """Return inputs as a call value: noise for numbers, indices of rows, and otherwise ones."""
        generator = torch.Generator().manual_seed(seed)
        tensors = []
        for value in self._inputs:
            dtype, shape = torch_dtype(value.dtype), self.shape_of(value)
            if math.prod(shape) > _LARGEST:
                raise InputError(
                    f"The input {value.name!r} of {self._spec} has the shape {_text(shape)}, which"
                    " is too large for an example.",
                    "Give an input: --input FILE.",
                )
            if dtype is not None and dtype.is_floating_point:
                tensors.append(torch.randn(shape, generator=generator).to(dtype))
            elif value.name in self._rows:
                rows = self._rows[value.name]
                tensors.append(torch.randint(rows, shape, generator=generator).to(dtype))
            else:
                tensors.append(torch.ones(shape, dtype=dtype or torch.float32))
        return tensors[0] if len(tensors) == 1 else (tuple(tensors), {})


def _default(length: int | str) -> int:
    if isinstance(length, int):
        return length
    return length.count("+") + 1 if _SUM.fullmatch(length) else 1


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point or dtype.is_complex:
        return "complex" if dtype.is_complex else "floating point"
    return "bool" if dtype is torch.bool else "integer"


def _fits(length: int | str, size: int, sizes: dict[str, int]) -> bool:
    if isinstance(length, int):
        return length == size
    if not _NAME.search(length) or _SUM.fullmatch(length):
        return True
    return sizes.setdefault(length, size) == size


def _text(shape: Sequence[int | str]) -> str:
    return "x".join(str(length) or "?" for length in shape) or "a scalar"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
