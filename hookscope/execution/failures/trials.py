"""Trying what would fit: a model on other shapes, and with a layer of another size.

Nothing is proposed that was not run. Sizes are searched with a copy on the meta device, which has
no values. A live module is run in no other way, since its code may do more than compute.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.failures.expectations import mismatches
from hookscope.execution.failures.frames import Call, arguments_at
from hookscope.execution.forward import grad_mode, preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import module_running, submodule
from hookscope.sources.meta import meta_copy
from hookscope.tensors.interrupts import signal_safe_contextmanager
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


def on_meta_device(prepared: Prepared) -> Prepared:
    """Return the same model and input on the meta device, and without what is to be done to it."""
    ghost = meta_copy(prepared.module)
    value = map_tensors(prepared.value, lambda path, tensor: tensor.to("meta"))
    return replace(prepared, module=ghost, value=value, plan=type(prepared.plan)())


def run_once(prepared: Prepared, grad: bool = False) -> Outcome:
    """Run a model as the run that failed did, quietly; leave it as it was."""
    model = prepared.module
    guard = preserve_model_state(model, train=prepared.train, seed=prepared.seed)
    with quiet(), guard, grad_mode(grad):
        try:
            with forward_interventions(prepared.plan, model, prepared.seed):
                prepared.run(*prepared.fresh_call())
        except Exception as error:
            return outcome_of(model, error)
    return Outcome()


@signal_safe_contextmanager
def quiet() -> Iterator[None]:
    """Let a model print and warn of nothing that it has said before."""
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@signal_safe_contextmanager
def replace_layer(model: nn.Module, layer: nn.Module, other: nn.Module) -> Iterator[None]:
    """Put another module in the place of a layer, under all its names, for the block."""
    places = [(m, n) for m in model.modules() for n, c in m._modules.items() if c is layer]
    for owner, name in places:
        owner._modules[name] = other
    try:
        yield
    finally:
        for owner, name in places:
            owner._modules[name] = layer


def single_tensor(value: Any) -> Tensor | None:
    """Return the tensor that a model is called with; None where it takes anything else."""
    args, kwargs = as_call(value)
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return args[0]
    return None


def with_shape(prepared: Prepared, shape: tuple[int, ...]) -> Prepared:
    """Return the same run on a tensor of another shape: noise, or zeros where it has integers."""
    old = single_tensor(prepared.value)
    assert old is not None
    if old.is_meta:
        return replace(prepared, value=torch.empty(shape, dtype=old.dtype, device="meta"))
    source = torch.Generator().manual_seed(prepared.seed)
    fresh = torch.randn(shape, generator=source) if old.is_floating_point() else torch.zeros(shape)
    return replace(prepared, value=fresh.to(old.device, old.dtype))


Shape = tuple[int, ...]

Try = Callable[[Shape], Outcome]

# Sides of images and lengths of sequences that models are commonly made for.
COMMON = (
    *(8, 16, 24, 28, 32, 40, 48, 50, 56, 64, 75, 80, 84, 96, 100, 112, 120, 128, 144, 150, 160),
    *(192, 200, 224, 227, 240, 256, 260, 288, 299, 300, 320, 331, 336, 380, 384, 400, 416, 448),
    *(480, 500, 512, 600, 640, 768, 800, 1000, 1024),
)

LARGEST = 4096

# A model of more modules than the first number is tried with at most as many shapes as the second.
LIMITS = ((0, 160), (50, 60), (200, 30))


class Trials:
    """Shapes tried on a model, each once, up to a number of trials that depends on its layers."""

    def __init__(self, ghost: Prepared, run: Try) -> None:
        self.ghost = ghost
        modules = sum(1 for _ in ghost.module.modules())
        self._left = [most for least, most in LIMITS if modules > least][-1]
        self._run = run
        self._known: dict[Shape, Outcome] = {}

    def outcome(self, shape: Shape) -> Outcome | None:
        """Return how a pass on noise of ``shape`` ends; None once there were enough trials."""
        if shape not in self._known:
            if not self._left:
                return None
            self._left -= 1
            self._known[shape] = self._run(shape)
        return self._known[shape]

    def runs(self, shape: Shape) -> bool:
        """Whether the model runs on a shape, as far as is known."""
        outcome = self.outcome(shape)
        return outcome is not None and not outcome.layer


def fitting_shape(trials: Trials, shape: Shape, failed: Outcome, own: Shape | None) -> Shape | None:
    """Return a shape that the model runs on, as near to ``shape`` as one was found.

    Args:
        trials: what tries a shape.
        shape: the one on which it failed.
        failed: how it failed.
        own: the shape that the model says it takes, if it does.
    """
    for candidate in _candidates(shape, failed, own):
        if trials.runs(candidate):
            return candidate
    for dims in _varied(shape):
        doubled = next(_sized(shape, dims, [min(2 * shape[dims[0]], LARGEST)]))
        outcome = trials.outcome(doubled)
        if outcome is None or outcome.is_like(failed):
            continue  # the failed layer gets the same whatever the length is, behind a pooling, say
        for candidate in _sized(shape, dims, _nearest(COMMON, shape[dims[0]])):
            if trials.runs(candidate):
                return candidate
        if found := _bisected(trials, shape, dims, failed):
            return found
    return None


def _candidates(shape: Shape, failed: Outcome, own: Shape | None) -> Iterator[Shape]:
    """Shapes to try: with another rank, the model's own, then by the numbers in the error."""
    yield (1, *shape)
    if len(shape) > 2 and shape[0] == 1:
        yield shape[1:]
    if len(shape) in (3, 4, 5):
        yield (shape[0], shape[-1], *shape[1:-1])  # channels last
    if len(shape) == 3:
        yield (1, shape[-1], *shape[:-1])
    if "more than 1 value per channel" in str(failed.error):
        yield (2, *shape[1:])
    numbers = {int(n) for n in re.findall(r"\d{1,5}", str(failed.error))}
    for dims in (*_varied(shape), *((dim,) for dim in range(1, len(shape) - 1))):
        yield from _sized(shape, dims, _nearest(numbers - {0}, shape[dims[0]]))
    if own is not None:
        yield own


def _nearest(sizes: Iterable[int], to: int) -> list[int]:
    return sorted(sizes, key=lambda size: (abs(size - to), size))


def _varied(shape: Shape) -> Iterator[tuple[int, ...]]:
    """The dimensions whose lengths are changed together: the sides of images, else one by one."""
    last = len(shape) - 1
    if last >= 3:
        yield (last - 1, last)
    if last >= 1:
        yield (last,)
    if last >= 2:
        yield (last - 1,)


def _sized(shape: Shape, dims: Iterable[int], sizes: Iterable[int]) -> Iterator[Shape]:
    chosen = set(dims)
    for size in sizes:
        if size <= LARGEST:
            yield tuple(size if i in chosen else length for i, length in enumerate(shape))


def _bisected(trials: Trials, shape: Shape, dims: tuple[int, ...], failed: Outcome) -> Shape | None:
    """A length at which the failed layer gets what it takes, if what it gets grows with it."""
    wanted = _excess(trials, failed)
    if wanted is None:
        return None
    start = shape[dims[0]]
    low, high = (1, start) if wanted > 0 else (start, LARGEST)
    while low <= high:
        middle = (low + high) // 2
        candidate = next(_sized(shape, dims, [middle]))
        outcome = trials.outcome(candidate)
        if outcome is None:
            return None
        if not outcome.layer:
            return candidate
        excess = _excess(trials, outcome) if outcome.layer == failed.layer else None
        # One that fails elsewhere is too small for what comes before, as a rule.
        if (excess or -1) > 0:
            high = middle - 1
        else:
            low = middle + 1
    return None


def _excess(trials: Trials, outcome: Outcome) -> int | None:
    """How much more than it takes the failed layer got; None if that is not known."""
    layer = submodule(trials.ghost.module, outcome.layer)
    if layer is None:
        return None
    for found in mismatches(layer, outcome.call, str(outcome.error)):
        if isinstance(found.wanted, int) and isinstance(found.got, int):
            return found.got - found.wanted
    return None
