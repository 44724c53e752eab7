"""The inputs and outputs of an exported program: structure and sizes, checked before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from hookscope.errors import InputError
from hookscope.tensors.torch_internals import pytree

_LETTERS = "NMKLPQRSTUVW"
_REPAIR = "Give it that shape{0}, or export the model again with dynamic_shapes."


class ProgramContract:
    """The inputs that a program was exported for. It is immutable: copies of a model share it."""

    def __init__(
        self, program: torch.export.ExportedProgram, placeholders: Sequence[fx.Node]
    ) -> None:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        self._in_spec, self._out_spec = signature.in_spec, signature.out_spec
        self._names = [str(node.target) for node in placeholders]
        self._expected: list[Any] = [node.meta.get("val") for node in placeholders]
        self._ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
        symbols = dict.fromkeys(
            str(symbol)
            for length in self._lengths()
            for symbol in sorted(length.node.expr.free_symbols, key=str)
        )
        self._letters = dict(zip(symbols, (*_LETTERS, *symbols), strict=False))

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgramContract:
        return self

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the program's inputs in order."""
        args_names, kwargs_names = pytree.tree_unflatten(self._names, self._in_spec)
        if kwargs.keys() == kwargs_names.keys():  # in the order of the export
            kwargs = {name: kwargs[name] for name in kwargs_names}
        flat: list[Any]
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            actual = pytree.tree_map(_describe, (args, kwargs))
            raise InputError(
                f"The program was exported for the inputs {_list_inputs(args_names, kwargs_names)},"
                f" but got {_list_inputs(*actual)}.",
                "Leave out --input and --shape to run it on the inputs stored in its file, or"
                " call it from Python with inputs of that structure.",
            )
        sizes: dict[str, int] = {}
        for name, expected, value in zip(self._names, self._expected, flat, strict=True):
            if isinstance(expected, Tensor):
                self._check_tensor(name, expected, value, sizes)
            elif isinstance(expected, int | float | str) and expected != value:
                raise InputError(
                    f"The program was exported with {name} = {expected!r}, but got {value!r}.",
                    "Give that value, or export the model again.",
                )
        return flat

    def restore(self, flat: Any) -> Any:
        """Return the program's flat output in the structure of the exported model's output."""
        return pytree.tree_unflatten(flat, self._out_spec)

    def _lengths(self) -> Iterator[torch.SymInt]:
        """The dynamic lengths of all inputs."""
        for expected in self._expected:
            lengths: tuple[Any, ...] = tuple(expected.shape) if isinstance(expected, Tensor) else ()
            yield from (length for length in lengths if isinstance(length, torch.SymInt))

    def _check_tensor(self, name: str, expected: Tensor, value: Any, sizes: dict[str, int]) -> None:
        if not isinstance(value, Tensor):
            raise InputError(
                f"Input {name} of the program must be a tensor, but got {type(value).__name__}.",
                "Give a tensor of the shape " + self._text(expected) + ".",
            )
        if value.is_floating_point() != expected.is_floating_point():
            kinds = [str(t.dtype).removeprefix("torch.") for t in (expected, value)]
            raise InputError(
                f"Input {name} of the program must be {kinds[0]}, but got {kinds[1]}.",
                "Leave out --input and --shape to run it on the inputs stored in its file, or"
                " call it from Python with a tensor of that dtype.",
            )
        fits = value.ndim == expected.ndim and all(
            self._fits(length, size, sizes)
            for length, size in zip(expected.shape, value.shape, strict=True)
        )
        if not fits:
            alone = f" (--shape {self._text(expected)})" if len(self._expected) == 1 else ""
            fixed = not any(isinstance(length, torch.SymInt) for length in expected.shape)
            raise InputError(
                f"The program was exported for an input {name} of shape {self._text(expected)}"
                f"{self._limits(expected)}, but got"
                f" {'x'.join(map(str, value.shape)) or 'a scalar'}.",
                _REPAIR.format(alone if fixed else " within its limits"),
            )

    def _fits(self, length: Any, size: int, sizes: dict[str, int]) -> bool:
        """Whether a length fits; the size of a free dimension is noted in ``sizes``."""
        if isinstance(length, int):
            return length == size
        expression = length.node.expr
        if expression.is_Symbol:
            limits = self._ranges.get(str(expression))
            within = limits is None or limits.lower <= size <= limits.upper
            return bool(within and sizes.setdefault(str(expression), size) == size)
        symbols = {symbol: sizes.get(str(symbol)) for symbol in expression.free_symbols}
        return None in symbols.values() or bool(expression.subs(symbols) == size)

    def _text(self, expected: Tensor) -> str:
        return "x".join(map(self._letter, expected.shape)) or "a scalar"

    def _letter(self, length: Any) -> str:
        text = str(length)
        for symbol, letter in self._letters.items():
            text = text.replace(symbol, letter)
        return text if text.isalnum() else f"({text})"

    def _limits(self, expected: Tensor) -> str:
        """A description of the limits of the dynamic lengths of a shape."""
        used = [s for s in self._letters if any(s in str(length) for length in expected.shape)]
        texts = []
        for symbol in used:
            limits = self._ranges.get(symbol)
            if limits is not None:
                least, most = limits.lower, limits.upper
                upper = f"from {least} to {most}" if most.is_Integer else f"{least} or more"
                texts.append(f"{self._letters[symbol]} {upper}")
        return f" ({', '.join(texts)})" if texts else ""


def _list_inputs(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    parts = [*map(_plain, args), *(f"{name}={_plain(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).replace("'", "")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor of {'x'.join(map(str, value.shape)) or 'a scalar'}"
    return type(value).__name__
