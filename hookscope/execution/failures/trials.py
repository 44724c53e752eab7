"""Trial runs of a model that failed: on other shapes, and with a layer of another size.

Shapes are searched with a copy on the meta device. A live module runs only as such a copy,
because its code may have side effects.
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

from hookscope.execution.failures.expectations import Call, mismatches
from hookscope.execution.failures.frames import arguments_at
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.interventions import BoundInterventions, forward_interventions
from hookscope.hooks.layers import module_running, submodule
from hookscope.sources.meta import meta_copy
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors, walk

Shape = tuple[int, ...]

# Common sides of images and lengths of sequences.
COMMON = (
    *(8, 16, 24, 28, 32, 40, 48, 50, 56, 64, 75, 80, 84, 96, 100, 112, 120, 128, 144, 150, 160),
    *(192, 200, 224, 227, 240, 256, 260, 288, 299, 300, 320, 331, 336, 380, 384, 400, 416, 448),
    *(480, 500, 512, 600, 640, 768, 800, 1000, 1024),
)
LARGEST = 4096
# A minimum number of modules, exclusive, and the maximum number of trials for such a model.
LIMITS = ((0, 160), (50, 60), (200, 30))


@dataclass(frozen=True)
class Outcome:
    """The layer that failed in a pass, its arguments and the error; empty if none failed."""

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
        """Whether two passes failed in the same layer, on the same shapes of its input."""
        return self.layer == other.layer and self.shapes == other.shapes


def outcome_of(module: nn.Module, error: Exception) -> Outcome:
    """Return the layer of ``module`` that raised, and its arguments."""
    layer = module_running(module, error.__traceback__)
    running = submodule(module, layer) or module
    return Outcome(layer, arguments_at(running, error.__traceback__), error)


def on_meta_device(prepared: Prepared) -> Prepared:
    """Return the same model and input on the meta device, without interventions."""
    module = meta_copy(prepared.module)
    value = map_tensors(prepared.value, lambda path, tensor: tensor.to("meta"))
    return replace(prepared, module=module, value=value, interventions=BoundInterventions())


def run_once(prepared: Prepared, grad: bool = False) -> Outcome:
    """Run a model like the run that failed, without output; restore its state."""
    model = prepared.module
    with quiet(), prepared.preserved(), grad_mode(grad):
        try:
            with forward_interventions(prepared.interventions, model, prepared.seed):
                prepared.run(*prepared.fresh_call())
        except Exception as error:
            return outcome_of(model, error)
    return Outcome()


def is_distributed() -> bool:
    """Return whether a pass may have to wait for other processes."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@signal_safe_contextmanager
def quiet() -> Iterator[None]:
    """Suppress what the model prints and its warnings within the block."""
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@signal_safe_contextmanager
def replace_layer(model: nn.Module, layer: nn.Module, other: nn.Module) -> Iterator[None]:
    """Replace a layer by another module, under all its names, within the block."""
    references = [(m, n) for m in model.modules() for n, c in m._modules.items() if c is layer]
    for owner, name in references:
        owner._modules[name] = other
    try:
        yield
    finally:
        for owner, name in references:
            owner._modules[name] = layer


def single_tensor(value: Any) -> Tensor | None:
    """Return the only argument of a model if it is a tensor; else None."""
    args, kwargs = as_call(value)
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return args[0]
    return None


def with_shape(prepared: Prepared, shape: tuple[int, ...]) -> Prepared:
    """Return the same run on a tensor of another shape: noise, or zeros for integers."""
    old = single_tensor(prepared.value)
    assert old is not None
    if old.is_meta:
        return replace(prepared, value=torch.empty(shape, dtype=old.dtype, device="meta"))
    generator = torch.Generator().manual_seed(prepared.seed)
    floating = old.is_floating_point()
    new = torch.randn(shape, generator=generator) if floating else torch.zeros(shape)
    return replace(prepared, value=new.to(old.device, old.dtype))


class Trials:
    """Trials of shapes on a model, each shape once, up to a limit that depends on its size."""

    def __init__(self, meta_model: Prepared, run: Callable[[Shape], Outcome]) -> None:
        self.meta_model = meta_model
        modules = sum(1 for _ in meta_model.module.modules())
        self._left = [trials for minimum, trials in LIMITS if modules > minimum][-1]
        self._run = run
        self._known: dict[Shape, Outcome] = {}

    def outcome(self, shape: Shape) -> Outcome | None:
        """Return how a pass on noise of ``shape`` ends; None after the limit of trials."""
        if shape not in self._known:
            if not self._left:
                return None
            self._left -= 1
            self._known[shape] = self._run(shape)
        return self._known[shape]

    def runs(self, shape: Shape) -> bool:
        """Return whether the model is known to run on a shape."""
        outcome = self.outcome(shape)
        return outcome is not None and not outcome.layer


def fitting_shape(
    trials: Trials, shape: Shape, failed: Outcome, preferred: Shape | None
) -> Shape | None:
    """Return a shape that the model runs on, close to ``shape``; None if none is found."""
    for candidate in _candidates(shape, failed, preferred):
        if trials.runs(candidate):
            return candidate
    for dims in _varied(shape):
        doubled = next(_sized(shape, dims, [min(2 * shape[dims[0]], LARGEST)]))
        outcome = trials.outcome(doubled)
        if outcome is None or outcome.is_like(failed):
            continue  # the failed layer's input does not depend on the length, as after a pooling
        for candidate in _sized(shape, dims, _nearest(COMMON, shape[dims[0]])):
            if trials.runs(candidate):
                return candidate
        if fitting := _bisected(trials, shape, dims, failed):
            return fitting
    return None


def _candidates(shape: Shape, failed: Outcome, preferred: Shape | None) -> Iterator[Shape]:
    """Shapes to try: of another rank, with numbers of the error's message, the preferred one."""
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
    if preferred is not None:
        yield preferred


def _nearest(sizes: Iterable[int], to: int) -> list[int]:
    return sorted(sizes, key=lambda size: (abs(size - to), size))


def _varied(shape: Shape) -> Iterator[tuple[int, ...]]:
    """The dimensions to change together: the sides of images, then single dimensions."""
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
    """A length that fits the failed layer, by bisection. The layer's input must grow with it."""
    excess = _excess(trials, failed)
    if excess is None:
        return None
    start = shape[dims[0]]
    low, high = (1, start) if excess > 0 else (start, LARGEST)
    while low <= high:
        middle = (low + high) // 2
        candidate = next(_sized(shape, dims, [middle]))
        outcome = trials.outcome(candidate)
        if outcome is None:
            return None
        if not outcome.layer:
            return candidate
        excess = _excess(trials, outcome) if outcome.layer == failed.layer else None
        # A failure in another layer usually means that the shape is too small.
        if (excess or -1) > 0:
            high = middle - 1
        else:
            low = middle + 1
    return None


def _excess(trials: Trials, outcome: Outcome) -> int | None:
    """The difference between the failed layer's input size and its own; None if not known."""
    layer = submodule(trials.meta_model.module, outcome.layer)
    if layer is None:
        return None
    for mismatch in mismatches(layer, outcome.call, str(outcome.error)):
        if isinstance(mismatch.wanted, int) and isinstance(mismatch.got, int):
            return mismatch.got - mismatch.wanted
    return None
