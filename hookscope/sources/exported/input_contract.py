"""What an exported program takes and gives: structure and sizes, checked before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from hookscope.errors import InputError

_LETTERS = "NMKLPQRSTUVW"
_REPAIR = "Give it that shape{0}, or export the model anew with dynamic_shapes."


class InputContract:
    """The inputs a program was exported for. It is never changed, so copies of a model share it.

    Args:
        program: the program.
        placeholders: its inputs in the order of its flattened arguments.
    """

    def __init__(
        self, program: torch.export.ExportedProgram, placeholders: Sequence[fx.Node]
    ) -> None:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        self._into, self._out_of = signature.in_spec, signature.out_spec
        self._names = [str(node.target) for node in placeholders]
        self._wanted: list[Any] = [node.meta.get("val") for node in placeholders]
        self._ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
        symbols = dict.fromkeys(
            str(symbol)
            for length in self._lengths()
            for symbol in sorted(length.node.expr.free_symbols, key=str)
        )
        self._letters = dict(zip(symbols, (*_LETTERS, *symbols), strict=False))

    def __deepcopy__(self, memo: dict[int, Any]) -> InputContract:
        return self

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the program's inputs in order.

        Raises:
            InputError: their structure, a shape or a plain value is none it was exported for.
        """
        wanted, named = pytree.tree_unflatten(self._names, self._into)
        if kwargs.keys() == named.keys():  # in the order of the export
            kwargs = {name: kwargs[name] for name in named}
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._into:
            given = pytree.tree_map(_described, (args, kwargs))
            raise InputError(
                f"The program was exported for the inputs {_listed(wanted, named)}, and got"
                f" {_listed(*given)}.",
                "Leave out --input and --shape to run it on the inputs that its file holds, or"
                " call it from Python with inputs of that structure.",
            )
        known: dict[str, int] = {}
        for name, wish, value in zip(self._names, self._wanted, flat, strict=True):
            if isinstance(wish, Tensor):
                self._check_tensor(name, wish, value, known)
            elif isinstance(wish, int | float | str) and wish != value:
                raise InputError(
                    f"The program was exported with {name} = {wish!r}, and got {value!r}.",
                    "Give that very value, or export the model anew.",
                )
        return flat

    def restore(self, flat: Any) -> Any:
        """Return the program's flat output in the structure that the exported model gave it."""
        return pytree.tree_unflatten(flat, self._out_of)

    def _lengths(self) -> Iterator[torch.SymInt]:
        """Every length of an input that may vary."""
        for wish in self._wanted:
            lengths: tuple[Any, ...] = tuple(wish.shape) if isinstance(wish, Tensor) else ()
            yield from (length for length in lengths if isinstance(length, torch.SymInt))

    def _check_tensor(self, name: str, wish: Tensor, value: Any, known: dict[str, int]) -> None:
        if not isinstance(value, Tensor):
            raise InputError(
                f"Input {name} of the program is a tensor, and got {type(value).__name__}.",
                "Give a tensor of the shape " + self._text(wish) + ".",
            )
        if value.is_floating_point() != wish.is_floating_point():
            kinds = [str(t.dtype).removeprefix("torch.") for t in (wish, value)]
            raise InputError(
                f"Input {name} of the program is of {kinds[0]}, and got {kinds[1]}.",
                "Leave out --input and --shape to run it on the inputs that its file holds, or"
                " call it from Python with a tensor of that dtype.",
            )
        fits = value.ndim == wish.ndim and all(
            self._fits(length, given, known)
            for length, given in zip(wish.shape, value.shape, strict=True)
        )
        if not fits:
            alone = f" (--shape {self._text(wish)})" if len(self._wanted) == 1 else ""
            fixed = not any(isinstance(length, torch.SymInt) for length in wish.shape)
            raise InputError(
                f"The program was exported for an input {name} of shape {self._text(wish)}"
                f"{self._limits(wish)}, and got {'x'.join(map(str, value.shape)) or 'a scalar'}.",
                _REPAIR.format(alone if fixed else " within its limits"),
            )

    def _fits(self, length: Any, given: int, known: dict[str, int]) -> bool:
        """Whether a length is the one wanted; what a free one is, is noted in ``known``."""
        if isinstance(length, int):
            return length == given
        expression = length.node.expr
        if expression.is_Symbol:
            limits = self._ranges.get(str(expression))
            within = limits is None or limits.lower <= given <= limits.upper
            return bool(within and known.setdefault(str(expression), given) == given)
        symbols = {symbol: known.get(str(symbol)) for symbol in expression.free_symbols}
        return None in symbols.values() or bool(expression.subs(symbols) == given)

    def _text(self, wish: Tensor) -> str:
        return "x".join(map(self._letter, wish.shape)) or "a scalar"

    def _letter(self, length: Any) -> str:
        text = str(length)
        for symbol, letter in self._letters.items():
            text = text.replace(symbol, letter)
        return text if text.isalnum() else f"({text})"

    def _limits(self, wish: Tensor) -> str:
        """What the free lengths of a shape may be, in words."""
        used = [s for s in self._letters if any(s in str(length) for length in wish.shape)]
        texts = []
        for symbol in used:
            limits = self._ranges.get(symbol)
            if limits is not None:
                least, most = limits.lower, limits.upper
                upper = f"from {least} to {most}" if most.is_Integer else f"{least} or more"
                texts.append(f"{self._letters[symbol]} {upper}")
        return f" ({', '.join(texts)})" if texts else ""


def _listed(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    parts = [*map(_plain, args), *(f"{name}={_plain(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).replace("'", "")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor of {'x'.join(map(str, value.shape)) or 'a scalar'}"
    return type(value).__name__
