"""Blocks and functions that run with or without gradients, and leave PyTorch's mode as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.files.signal_safety import SignalSafeContext, signal_safe
from hookscope.tensors.input_clones import (
    InputClone,
    clone_preserving_strides,
    with_type_and_attributes,
    write_back,
)
from hookscope.tensors.nested import distinct_tensors, is_functorch_tensor, map_tensors

P = ParamSpec("P")
T = TypeVar("T")

Grads = tuple[Tensor | None, ...]
GradHook = Callable[[Grads], Grads]


def grad_mode(enabled: bool) -> SignalSafeContext[None]:
    """Enable or disable autograd within the block."""
    return signal_safe(torch.enable_grad() if enabled else torch.no_grad())


def without_grad(function: Callable[P, T]) -> Callable[P, T]:
    """Like ``torch.no_grad`` as a decorator, but an interrupt never leaves gradients disabled.

    It is not for generator functions, whose code runs after the call.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with grad_mode(False):
            return function(*args, **kwargs)

    return run


class GradientGate(torch.autograd.Function):
    """Returns clones forward; passes the gradients through a function backward."""

    @staticmethod
    def forward(ctx: Any, function: GradHook, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return a clone of each of ``tensors``."""
        ctx.function = function
        ctx.set_materialize_grads(False)  # a missing gradient must stay None
        return tuple(clone_preserving_strides(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the function's result for ``grads``, and None for the function itself."""
        return None, *ctx.function(grads)


def insert_gradient_gate(value: Any, function: GradHook) -> Any:
    """Return ``value`` with clones in it whose gradients go through ``function`` together."""
    tensors = list(distinct_tensors(value).values())
    through = [i for i, tensor in enumerate(tensors) if carries_gradient(tensor)]
    if not through:
        return value
    if any(tensors[i].is_nested and tensors[i].layout is torch.strided for i in through):
        raise HookscopeError(
            "The gradient of a nested tensor of the layout torch.strided cannot be changed or"
            " timed, because PyTorch allows no Python function to return one.",
            "Create it with layout=torch.jagged, or choose other layers.",
        )

    # Not the tensors: they may refer to this function, if they are changed in place.
    count = len(tensors)

    def on_grads(grads: Grads) -> Grads:
        shown: list[Tensor | None] = [None] * count
        for i, grad in zip(through, grads, strict=True):
            shown[i] = grad
        back = function(tuple(shown))
        return tuple(back[i] for i in through)

    clones: Sequence[Tensor] = GradientGate.apply(on_grads, *(tensors[i] for i in through))
    by_original = {}
    for i, clone in zip(through, clones, strict=True):
        by_original[id(tensors[i])] = with_type_and_attributes(clone, tensors[i])
    return map_tensors(value, lambda path, tensor: by_original.get(id(tensor), tensor))


def carries_gradient(tensor: Tensor) -> bool:
    """Whether ``tensor`` has a graph now; False inside ``torch.func``, which allows no gate."""
    return torch.is_grad_enabled() and tensor.requires_grad and not is_functorch_tensor(tensor)


class BackwardHookPair:
    """One call of a module between two gates: at its inputs, and at its outputs."""

    def __init__(
        self,
        function: Callable[[Grads, Grads], Grads],
        on_grad: Callable[[Grads], None] | None = None,
    ) -> None:
        self.function = function
        self.on_grad = on_grad
        self._inputs = 0
        self._from_output: Grads = ()
        self._clones: list[InputClone] = []

    def enter(self, args: Any) -> Any:
        """Return the arguments to call the module with."""
        gated = insert_gradient_gate(args, lambda grads: self.function(grads, self._from_output))
        inputs = distinct_tensors(args)
        self._inputs = len(inputs)
        for old, new in zip(inputs.values(), distinct_tensors(gated).values(), strict=True):
            if new is not old:
                self._clones.append(InputClone.of(old, new))
        return gated

    def leave(self, output: Any) -> Any:
        """Return the replacement of ``output``; in-place changes of inputs reach the caller."""
        gated = bool(self._clones)
        while self._clones:  # a clone that stays here would be a cycle, through the graph
            write_back(self._clones.pop(0))

        def on_output(grads: Grads) -> Grads:
            self._from_output = grads
            if self.on_grad is not None:
                self.on_grad(grads)
            if not gated:
                self.function((None,) * self._inputs, grads)
            return grads

        return insert_gradient_gate(output, on_output)
