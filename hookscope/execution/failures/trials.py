"""Trying what would fit: a model on other shapes, and with a layer of another size.

Nothing is proposed that was not run. Sizes are searched with a copy on the meta device, which has
no values. A live module is run in no other way, since its code may do more than compute.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.failures.frames import Call, arguments_at
from hookscope.execution.forward import grad_mode, untouched
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import values_changed
from hookscope.hooks.layers import module_running, submodule
from hookscope.sources.ghosts import meta_copy
from hookscope.tensors.interrupts import restoring
from hookscope.tensors.nested import as_call, map_tensors, walk


@dataclass(frozen=True)
class Outcome:
    """How a pass ended: ``layer`` is empty where it came to its end."""

    layer: str = ""
    call: Call | None = None
    error: Exception | None = None

    @property
    def shapes(self) -> list[tuple[int, ...]] | None:
        """The shapes that the failed layer was called with; None if that is not known."""
        if self.call is None:
            return None
        return [tuple(tensor.shape) for _, tensor in walk(self.call)]

    def is_like(self, other: Outcome) -> bool:
        """Whether two passes failed in one layer, on one shape of input."""
        return self.layer == other.layer and self.shapes == other.shapes


def outcome_of(module: nn.Module, error: Exception) -> Outcome:
    """Return where in ``module`` an exception arose, and what that layer was called with."""
    layer = module_running(module, error.__traceback__)
    running = submodule(module, layer) or module
    return Outcome(layer, arguments_at(running, error.__traceback__), error)


def ghost_of(prepared: Prepared) -> Prepared:
    """Return the same model and input on the meta device, and without what is to be done to it."""
    ghost = meta_copy(prepared.module)
    value = map_tensors(prepared.value, lambda path, tensor: tensor.to("meta"))
    return replace(prepared, module=ghost, value=value, plan=type(prepared.plan)())


def run_once(prepared: Prepared, grad: bool = False) -> Outcome:
    """Run a model as the run that failed did, quietly; leave it as it was."""
    model = prepared.module
    guard = untouched(model, train=prepared.train, seed=prepared.seed)
    with quiet(), guard, grad_mode(grad):
        try:
            with values_changed(prepared.plan, model, prepared.seed):
                prepared.run(*prepared.fresh_call())
        except Exception as error:
            return outcome_of(model, error)
    return Outcome()


@restoring
def quiet() -> Iterator[None]:
    """Let a model print and warn of nothing that it has said before."""
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@restoring
def replaced(model: nn.Module, layer: nn.Module, other: nn.Module) -> Iterator[None]:
    """Put another module in the place of a layer, under all its names, for the block."""
    places = [(m, n) for m in model.modules() for n, c in m._modules.items() if c is layer]
    for owner, name in places:
        owner._modules[name] = other
    try:
        yield
    finally:
        for owner, name in places:
            owner._modules[name] = layer


def lone_tensor(value: Any) -> Tensor | None:
    """Return the tensor that a model is called with; None where it takes anything else."""
    args, kwargs = as_call(value)
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return args[0]
    return None


def with_shape(prepared: Prepared, shape: tuple[int, ...]) -> Prepared:
    """Return the same run on a tensor of another shape: noise, or zeros where it has integers."""
    old = lone_tensor(prepared.value)
    assert old is not None
    if old.is_meta:
        return replace(prepared, value=torch.empty(shape, dtype=old.dtype, device="meta"))
    source = torch.Generator().manual_seed(prepared.seed)
    fresh = torch.randn(shape, generator=source) if old.is_floating_point() else torch.zeros(shape)
    return replace(prepared, value=fresh.to(old.device, old.dtype))
