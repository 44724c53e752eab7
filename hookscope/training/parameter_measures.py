"""Measures of the parameters of a model in one step: gradients, weights and updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from hookscope.hooks.layers import Layer
from hookscope.hooks.torch_state import inside_backward
from hookscope.results.records import key_of
from hookscope.stores.runs.series import Series
from hookscope.tensors.torch_internals import (
    foreach_clamp_min_,
    foreach_copy_,
    foreach_div,
    foreach_sqrt_,
    foreach_sub_,
)
from hookscope.training.found_models import dense_values, local_part
from hookscope.training.tensor_measures import (
    PendingValues,
    count_nonfinite,
    in_groups,
    is_measurable,
    is_on_host,
    norm_of,
    norms_of,
    places_by_kind,
    unnoticed,
)

KEPT_BYTES = 64 * 2**20  # of copies of the parameters of a model


class NamedParameters:
    """The distinct parameters of some layers, with their keys."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        named: dict[int, tuple[nn.Parameter, str]] = {}
        for layer in layers:
            for name, parameter in layer.module._parameters.items():
                if parameter is not None and is_measurable(local_part(parameter.detach())):
                    named.setdefault(id(parameter), (parameter, key_of(layer.name, 1, name)))
        self._references = [ref(parameter) for parameter, _ in named.values()]
        self.keys = [key for _, key in named.values()]
        self._positions = {number: position for position, number in enumerate(named)}
        # Memory for a copy of each: to get new memory takes longer than to copy.
        self._copies: dict[int, Tensor] = {}
        size = sum(parameter.nbytes for parameter, _ in named.values())
        self._keeps_copies = size <= KEPT_BYTES

    def alive(self) -> dict[int, nn.Parameter]:
        """Return the parameters that the script has not deleted, by position."""
        found = ((position, each()) for position, each in enumerate(self._references))
        return {position: parameter for position, parameter in found if parameter is not None}

    def of(self, optimizer: Optimizer) -> list[int]:
        """Return the positions of those that an optimizer has."""
        return [position for position, _ in self.with_groups(optimizer)]

    def copies(self, positions: Sequence[int]) -> list[Tensor]:
        """Return copies of parts of parameters on this rank, in memory that is used again."""
        found: list[Tensor] = []
        again: dict[int, Tensor] = {}  # the values for which there is memory, by place
        parameters = self.alive()
        for position in positions:
            values = values_of(parameters[position])
            copy = self._copies.get(position)
            kind = (values.shape, values.dtype, values.device)
            if copy is not None and (copy.shape, copy.dtype, copy.device) == kind:
                again[len(found)] = values
            else:
                copy = values.clone()
                if self._keeps_copies:
                    self._copies[position] = copy
            found.append(copy)
        if again:
            foreach_copy_([found[n] for n in again], list(again.values()))
        return found

    def with_groups(self, optimizer: Optimizer) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the positions of those that an optimizer has, with the group of each."""
        for group in optimizer.param_groups:
            for weight in group["params"]:
                position = self._positions.get(id(weight))
                # A later parameter may have the id of one that is gone.
                if position is not None and self._references[position]() is weight:
                    yield position, group


class Numbers:
    """One number for some tensors; of what is added twice, the last before ``keep`` counts."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[int], Tensor]] = []
        self._arrived: dict[int, NDArray[np.float64]] = {}  # by the number of the part
        self._counting: dict[int, int] = {}  # how many parts count, by position
        self._kept = 0  # how many parts there were when ``keep`` was called

    def add(self, positions: list[int], numbers: Sequence[Tensor]) -> Tensor | None:
        """Add the numbers of the parameters at some positions; return them as one tensor."""
        new = [
            ([positions[n] for n in chosen], torch.stack([numbers[n] for n in chosen]))
            for chosen in places_by_kind(numbers)
        ]
        first = len(self._parts) - len(new)
        if first < self._kept or any(
            old[0] != part[0] for old, part in zip(self._parts[first:], new, strict=True)
        ):
            first = len(self._parts)
        # The same parameters again, as after each backward pass of many: these replace the others.
        self._parts[first:] = new
        return new[0][1] if len(new) == 1 else None

    def keep(self, positions: Iterable[int]) -> None:
        """Fix what is measured so far at some positions; later numbers do not replace it."""
        self._kept = len(self._parts)
        self._counting.update(dict.fromkeys(positions, self._kept))

    def send(self, pending: PendingValues) -> None:
        """Have the numbers copied to the host; none may be added afterwards."""
        for part, (_, joined) in enumerate(self._parts):
            pending.add((joined,), partial(self._take, part))

    def _take(self, part: int, numbers: list[NDArray[np.float64]]) -> None:
        self._arrived[part] = numbers[0]

    def read(self, count: int) -> NDArray[np.float64]:
        """Return the numbers of all ``count`` parameters; -1 for those without one."""
        found = np.full(count, -1.0)
        for part, (positions, _) in enumerate(self._parts):
            numbers = self._arrived[part]
            if self._counting:
                counts = [self._counting.get(n, len(self._parts)) > part for n in positions]
                found[np.compress(counts, positions)] = numbers[counts]
            else:
                found[positions] = numbers
        return found


class _NumbersByKind:
    """The numbers of each kind."""

    def __init__(self) -> None:
        self.gradients = Numbers()
        self.nonfinite = Numbers()
        self.clipped = Numbers()
        self.weights = Numbers()
        self.updates = Numbers()
        self.adam = Numbers()


class ParameterMeasures:
    """Measures the parameters of a model in one step; gradients, before the script clips them."""

    # The last measure of a gradient before the optimizer's step counts: a later backward pass, as
    # that of the generator through the discriminator, may add to it.

    def __init__(
        self, name: str, named: NamedParameters, pending: PendingValues, *, optimizer: bool
    ) -> None:
        self.name = name
        self.named = named
        self._pending = pending
        self._measures_state = optimizer
        self._numbers = _NumbersByKind()
        self._measured: set[int] = set()  # positions of gradients
        self._skipped: set[int] = set()  # positions, of a step that a fused optimizer has skipped
        self._before: dict[int, Tensor] = {}
        self._weighed: set[int] = set()
        self._trainable: set[int] = set()  # positions, as the step ends
        self._later: list[ParameterMeasures] = []

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer stepped that has some of the parameters."""
        return any(part._weighed for part in (self, *self._later))

    def after_backward(self) -> None:
        """Measure the gradients that the parameters have now."""
        with unnoticed():
            self._measure_gradients(self.named.alive())

    def before_step(self, optimizer: Optimizer) -> None:
        """Measure weights and gradients as the optimizer gets them, and keep the weights."""
        own = self.named.of(optimizer)
        parameters = self.named.alive()
        with unnoticed():
            if inside_backward():  # the optimizer steps, and may clear the gradients, within it
                self._measure_gradients(own)
            measured = [n for n in own if n in self._measured]
            # Those left are of the step before, or were set without a backward pass.
            self._measure_gradients([n for n in own if n not in self._measured])
            self._measured.difference_update(own)
            self._numbers.gradients.keep(measured)
            self._numbers.nonfinite.keep(measured)
            measured = [n for n in measured if parameters[n].grad is not None]
            norms = norms_of([values_of(parameters[n].grad) for n in measured])
            scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer
            if isinstance(scale, Tensor) and norms:
                scales = [scale.reshape(()).to(norm.device) for norm in norms]
                norms = list(foreach_div(norms, scales))
            self._numbers.clipped.add(measured, norms)
            copies = self.named.copies(own)
            self._before = dict(zip(own, copies, strict=True))
            self._numbers.weights.add(own, norms_of(copies))
            self._weighed.update(own)

    def after_step(self, optimizer: Optimizer) -> None:
        """Measure the updates, and what Adam divided by."""
        parameters = self.named.alive()
        own = [n for n in self.named.of(optimizer) if n in self._before]
        found_bad = getattr(optimizer, "found_inf", None)  # of a fused optimizer
        with unnoticed():
            if isinstance(found_bad, Tensor):
                self._pending.add((found_bad.reshape(()).clone(),), partial(self._take_bad, own))
            updates = [self._before.pop(n) for n in own]
            if updates:
                weights = [values_of(parameters[n]) for n in own]
                self._numbers.updates.add(own, _norms_of_differences(updates, weights))
            if self._measures_state and optimizer.state:
                self._measure_adam(optimizer)

    def _take_bad(self, positions: list[int], numbers: list[float]) -> None:
        if numbers[0]:
            self._skipped.update(positions)

    def _measure_adam(self, optimizer: Optimizer) -> None:
        states: dict[int, _AdamState] = {}
        parameters = self.named.alive()
        for n, group in self.named.with_groups(optimizer):
            state = _adam_state(optimizer, parameters[n], group)
            if state is not None:
                states[n] = state
        by_kind: dict[tuple[object, ...], list[int]] = {}
        for n, state in states.items():
            by_kind.setdefault(state.kind, []).append(n)
        for chosen in by_kind.values():
            self._numbers.adam.add(chosen, list(_adam_rms(states[n] for n in chosen)))

    def send(self) -> None:
        """Measure the weights of parameters that no optimizer has changed."""
        self._before.clear()
        parameters = self.named.alive()
        self._trainable = {n for n, parameter in parameters.items() if parameter.requires_grad}
        rest = [n for n in parameters if n not in self._weighed]
        with unnoticed():
            weights = [values_of(parameters[n]) for n in rest]
            self._numbers.weights.add(rest, norms_of(weights))
            for numbers in vars(self._numbers).values():
                numbers.send(self._pending)

    def join(self, later: ParameterMeasures) -> None:
        """Add the numbers of a later part of the step."""
        if later.named is self.named:  # else the model has other parameters now
            self._later.append(later)

    def _read(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of each kind, one for each parameter; -1 for those without one."""
        count = len(self.named.keys)
        numbers = {kind: one.read(count) for kind, one in vars(self._numbers).items()}
        for kind in ("updates", "adam"):
            numbers[kind][list(self._skipped)] = -1
        return numbers

    def _read_all(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of all parts: of that in which an optimizer stepped, else the last."""
        numbers = self._read()
        weighed = np.isin(np.arange(len(self.named.keys)), list(self._weighed))
        for part in self._later:
            stepped = np.isin(np.arange(len(weighed)), list(part._weighed))
            for kind, later in part._read().items():
                counts = (stepped | ~weighed) & (later != -1)
                numbers[kind] = np.where(counts, later, numbers[kind])
            weighed |= stepped
        return numbers

    def values(self, scale: float) -> dict[Series, float]:
        """Return the numbers once they have arrived."""
        numbers = self._read_all()
        gradients, nonfinite = numbers["gradients"], numbers["nonfinite"]
        clipped, adam = numbers["clipped"], numbers["adam"]
        weights, updates = numbers["weights"], numbers["updates"]
        found: dict[Series, float] = {}
        for n, key in enumerate(self.named.keys):
            if weights[n] == -1:  # the script deleted it before the step ended
                continue
            series = _series(self.name, key)
            found[series["weight"]] = norm = float(weights[n])
            if gradients[n] != -1:
                found[series["gradient"]] = float(gradients[n]) / scale
                # They were not counted where the norm shows that there are none.
                is_finite = np.isfinite(gradients[n])
                found[series["nonfinite"]] = 0.0 if is_finite else float(nonfinite[n])
            elif n in self._trainable:
                found[series["gradient"]] = 0.0
            # An optimizer may have a frozen parameter, and leaves it as it is.
            is_frozen = n not in self._trainable
            if updates[n] != -1 and not (is_frozen and updates[n] == 0):
                found[series["update"]] = float(updates[n])
                if norm:
                    found[series["ratio"]] = float(updates[n]) / norm
            if adam[n] != -1:
                found[series["adam"]] = float(adam[n])
        arrived = gradients != -1
        if arrived.any():
            total = float(np.linalg.norm(gradients[arrived])) / scale
            found[Series(self.name, "gradients", "norm")] = total
            both = arrived & (clipped != -1)
            if before := float(np.linalg.norm(gradients[both])) / scale:
                after = float(np.linalg.norm(clipped[both]))
                found[Series(self.name, "gradients", "clipped")] = max(1 - after / before, 0.0)
        return found

    def _measure_gradients(self, positions: Iterable[int]) -> None:
        parameters = self.named.alive()
        positions = [n for n in positions if parameters[n].grad is not None]
        gradients = [values_of(parameters[n].grad) for n in positions]
        norms = norms_of(gradients)
        joined = self._numbers.gradients.add(positions, norms)
        self._measured.update(positions)
        if joined is not None and is_on_host(joined) and bool(joined.isfinite().all()):
            return
        self._numbers.nonfinite.add(positions, count_nonfinite(gradients))


@cache
def _series(model: str, key: str) -> dict[str, Series]:
    return {
        "weight": Series(model, key, "norm"),
        "gradient": Series(model, f"{key}.grad", "norm"),
        "nonfinite": Series(model, f"{key}.grad", "nonfinite"),
        "update": Series(model, f"{key}.update", "norm"),
        "ratio": Series(model, f"{key}.update", "ratio"),
        "adam": Series(model, key, "adam_rms"),
    }


def _norms_of_differences(before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
    """Norms of ``before`` - ``after``; ``before`` is overwritten."""
    if all(map(is_on_host, before)):  # each while it is in the cache
        return [norm_of(old.sub_(new)) for old, new in zip(before, after, strict=True)]
    foreach_sub_(before, after)
    return norms_of(before)


def values_of(gradient: Tensor | None) -> Tensor:
    """Return the real numbers of a gradient, or of another tensor, on this rank."""
    assert gradient is not None
    values = dense_values(local_part(gradient.detach()))
    return torch.view_as_real(values) if values.is_complex() else values


class _AdamState(NamedTuple):
    """What Adam had for a parameter in a step."""

    gradient: Tensor
    squares: Tensor
    step: float | Tensor  # a number, unless reading it means to wait
    log_beta: float
    eps: float

    @property
    def kind(self) -> tuple[object, ...]:
        """What those share that are computed together."""
        types = (self.gradient.dtype, self.squares.dtype, type(self.step))
        return self.gradient.device, *types, self.log_beta, self.eps


def _adam_state(
    optimizer: Optimizer, weight: nn.Parameter, group: dict[str, Any]
) -> _AdamState | None:
    """Return what Adam had for a parameter; None if this is unknown."""
    state = optimizer.state.get(weight, {})
    squares, step = state.get("exp_avg_sq"), state.get("step")
    if squares is None or step is None or weight.grad is None:
        return None
    gradient, squares = values_of(weight.grad), values_of(squares)
    eps, betas = group.get("eps"), group.get("betas")
    is_adam = isinstance(eps, float | int) and isinstance(betas, tuple | list) and len(betas) == 2
    if gradient.shape != squares.shape or not is_adam or group.get("amsgrad"):
        return None
    if not isinstance(step, Tensor) or is_on_host(step):
        step = float(step)
    log_beta = math.log(beta) if (beta := float(group["betas"][1])) else -math.inf
    return _AdamState(gradient, squares, step, log_beta, group["eps"])


def _adam_rms(states: Iterable[_AdamState]) -> Iterator[Tensor]:
    """RMS of g / max(sqrt(v), eps) with Adam's v (StableAdamW, equation 3), of states of a kind."""
    for group in in_groups(states, lambda state: state.squares):
        gradients, squares, steps, log_betas, eps = zip(*group, strict=True)
        # 1 - beta ** step, which loses half of its digits in float32.
        if isinstance(steps[0], Tensor):
            joined = torch.stack([step.reshape(()).float() for step in steps])
            roots = foreach_div(squares, list(-torch.expm1(joined * log_betas[0])))
        else:
            roots = foreach_div(squares, [-math.expm1(step * log_betas[0]) for step in steps])
        foreach_sqrt_(roots)
        foreach_clamp_min_(roots, eps[0])
        norms = norms_of(foreach_div(gradients, roots))
        yield from foreach_div(norms, [math.sqrt(one.numel()) for one in squares])
