"""What is recorded of one step: hooks while it runs, and its rows once its numbers have arrived.

The loss of a step with several backward passes is the sum if the script divides each loss by their
number, or by a number that they share, such as that of tokens. Otherwise it is the mean. Whether it
divides is seen in the graph of the loss in the first such step, and holds for the whole run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import Tensor

from hookscope.stores.runs.run_info import LossRule
from hookscope.stores.runs.series import LOSS, LOSS_SCALE, Series
from hookscope.tensors.torch_internals import has_unpack_hook
from hookscope.training.layer_measures import LayerMeasures
from hookscope.training.parameter_measures import ParameterMeasures
from hookscope.training.state_measures import StateMeasures, batch_number
from hookscope.training.tensor_measures import (
    PendingValues,
    is_measurable,
    is_on_host,
    unnoticed,
)

if TYPE_CHECKING:
    from hookscope.training.output_sketches import OutputSketches

_MAX_NODES = 8  # from the loss on that may scale it
_UNCHANGED = ("ToCopyBackward0", "CloneBackward0")
_TRIES = 100  # steps with one backward pass each, until no loss is looked at any more

SECONDS = Series("", "step", "seconds")
Measures = TypeVar("Measures", LayerMeasures, ParameterMeasures)


class _Divisors(NamedTuple):
    """What a loss was divided by, by a number or a tensor of one entry."""

    numbers: list[float]  # also the inverse of what it was multiplied by
    tensors: list[Tensor]  # the same objects as in the script


def _divisors_of(loss: Tensor) -> _Divisors:
    found = _Divisors([], [])
    for node in _scaling_nodes(loss):
        try:
            if has_unpack_hook(node, "_raw_saved_other"):  # the program's: it is not to be called
                break
            other = getattr(node, "_saved_other", None)
        except (AttributeError, RuntimeError):  # it has none, or it was written to in place
            break
        if not isinstance(other, Tensor) or other.numel() != 1:
            break
        divides = node.name() == "DivBackward0"
        if divides:
            found.tensors.append(other)
        # Reading a number from another device would mean to wait for it.
        if is_on_host(other) and (number := float(other)):
            found.numbers.append(number if divides else 1 / number)
    return found


def _scaling_nodes(loss: Tensor) -> Iterator[Any]:
    node: Any = loss.grad_fn
    for _ in range(_MAX_NODES):
        if node is None:
            return
        inputs = [one for one, _ in node.next_functions if one is not None]
        if len(inputs) != 1:
            return
        if node.name() in ("DivBackward0", "MulBackward0"):
            yield node
        elif node.name() not in _UNCHANGED:
            return
        node = inputs[0]


class LossOfSteps:
    """How the losses of the backward passes of a step are combined."""

    def __init__(self) -> None:
        self.rule: LossRule = ""
        self._divisors: list[_Divisors] = []
        self._tries = 0

    def look(self, loss: Tensor) -> None:
        """Look at the graph of a loss that is about to be differentiated."""
        if not self.rule and self._tries < _TRIES:
            self._divisors.append(_divisors_of(loss))

    def end_part(self, count: int) -> None:
        """Choose the rule, if the optimizer has stepped after ``count`` backward passes."""
        if count > 1 and not self.rule:
            self.rule = "sum" if self._are_divided(count) else "mean"
        if count:
            self._tries += 1
            self._divisors.clear()

    def end_step(self, count: int) -> None:
        """Choose the mean for a step whose ``count`` backward passes are of several optimizers."""
        if count > 1 and not self.rule:
            self.rule = "mean"

    def _are_divided(self, count: int) -> bool:
        divisors = self._divisors
        if len(divisors) != count:
            return False
        if all(any(math.isclose(n, count) for n in one.numbers) for one in divisors):
            return True
        first, *others = divisors
        return any(
            all(any(tensor is same for tensor in one.tensors) for one in others)
            for same in first.tensors
        )


class LossTotal:
    """The losses of some backward passes; it waits for no device."""

    def __init__(self, rule: LossOfSteps) -> None:
        self.count = 0
        self._rule = rule
        self._sum: float | Tensor = 0.0

    def add(self, loss: float | Tensor, count: int = 1) -> None:
        """Add the loss of a backward pass, or the sum of those of some; a tensor is copied."""
        self._sum = self._sum + loss if self.count else loss
        self.count += count

    def join(self, later: LossTotal) -> None:
        """Add those of another total."""
        self.add(later._sum, later.count)

    @property
    def value(self) -> float | Tensor:
        """The loss; its sum or mean if there are several."""
        return self._sum / self.count if self.count > 1 and self._rule.rule != "sum" else self._sum


class StepRecord:
    """One step of a training, or a part of one that ends with a step of an optimizer."""

    def __init__(self, is_sampled: bool, losses: LossOfSteps, *, sketches: bool = False) -> None:
        self.step = 0
        self.is_sampled = is_sampled
        self.sketches = sketches
        self.called: set[str] = set()
        self.has_ended = False
        self.pending = PendingValues()
        self.layers: list[LayerMeasures] = []
        self.parameters: list[ParameterMeasures] = []
        self.states: list[StateMeasures] = []
        self.loss = LossTotal(losses)
        self._losses = losses
        self._parts = [self]  # which together are the step
        self._part_loss = LossTotal(losses)  # since the last step of an optimizer
        self._is_new_part = False
        self._numbers: dict[Series, float] = {}
        self._waiting: dict[Series, int] = {}  # on a device: which of the values counts
        self._began = time.perf_counter()
        self._seconds: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether neither a backward pass began nor an optimizer stepped."""
        return not (self.loss.count or self._numbers or self._waiting)

    @property
    def has_arrived(self) -> bool:
        """Whether all numbers are on the host, once it has ended."""
        return all(part.pending.has_arrived for part in self._parts)

    def wait(self) -> None:
        """Wait until they are."""
        for part in self._parts:
            part.pending.wait()

    def expect_gradients(self, is_in_backward: bool) -> None:
        """Expect gradients at outputs from now on, or no more."""
        for part in self._parts:
            for layers in part.layers:
                layers.is_in_backward = is_in_backward

    def add_loss(self, loss: Tensor) -> None:
        """Record the loss of a backward pass, a tensor of one entry."""
        value = _value_of(loss)
        if value is None:
            return
        if self._is_new_part:
            self._part_loss, self._is_new_part = LossTotal(self._losses), False
        self._losses.look(loss)
        self.loss.add(value)
        self._part_loss.add(value)

    def end_part(self, series: Series | None) -> None:
        """Record the loss since the last step of an optimizer.

        Without a backward pass since then, the loss is that of the last step.
        """
        if not self._is_new_part:
            self._losses.end_part(self._part_loss.count)
        if series is not None and self._part_loss.count:
            self.set(series, self._part_loss.value)
        self._is_new_part = True

    def set(self, series: Series, value: float | Tensor) -> None:
        """Record a number of the step; a tensor of one entry may be on any device."""
        if isinstance(value, Tensor):
            number = _value_of(value)
            if number is None:
                return
            if isinstance(number, Tensor):
                self._waiting[series] = self._waiting.get(series, 0) + 1
                self.pending.add((number,), partial(self._take, series, self._waiting[series]))
                return
            value = number
        if self._waiting:
            self._waiting[series] = self._waiting.get(series, 0) + 1
        self._numbers[series] = float(value)

    def _take(self, series: Series, which: int, numbers: list[float]) -> None:
        if self._waiting[series] == which:  # else another value was set since
            self._numbers[series] = numbers[0]

    def has(self, series: Series) -> bool:
        """Whether a number was recorded."""
        return series in self._numbers or series in self._waiting

    def hold(self) -> None:
        """End this part. The hooks on its tensors stay: a graph may be differentiated again."""
        self._seconds = time.perf_counter() - self._began

    def resume(self, later: StepRecord) -> None:
        """Go on with a part that was held, in place of ``later``, which has only forward passes."""
        later.parameters = []
        self._seconds = None
        self.join(later)

    def join(self, later: StepRecord) -> None:
        """Make a later part a part of this step."""
        self.is_sampled = self.is_sampled and later.is_sampled
        self.loss.join(later.loss)
        self._parts += later._parts
        if self._seconds is not None:
            self._seconds += later._until_now
        later._parts = []

    @property
    def _until_now(self) -> float:
        return time.perf_counter() - self._began if self._seconds is None else self._seconds

    def forget(self) -> None:
        """Forget what was measured of layers and parameters, and the models with it."""
        for part in self._parts:
            for layers in part.layers:
                layers.end()
            part.layers, part.parameters, part.states = [], [], []

    def end(self, step: int, *, is_sampled: bool) -> None:
        """Begin to copy the numbers to the host."""
        self.step, self.has_ended = step, True
        self.is_sampled = self.is_sampled and is_sampled
        if not self.is_sampled:
            self.forget()
        self._losses.end_step(self.loss.count)
        if self.loss.count:
            self.set(LOSS, self.loss.value)
        if self.step:  # it is not known when the first one began
            self._numbers[SECONDS] = self._until_now
        batches: dict[str, dict[Series, float]] = {}
        for part in self._parts:
            for layers in part.layers:
                layers.end()
                if layers.called:
                    self.called.add(layers.name)
                batch = batches.setdefault(layers.name, {})
                for series, size in layers.batch.items():
                    batch[series] = batch.get(series, 0.0) + size
            for parameters in part.parameters:
                parameters.send()
            part.pending.send()
        for batch in batches.values():
            self._numbers |= batch

    def _joined_numbers(self) -> dict[Series, float]:
        numbers: dict[Series, float] = {}
        for part in self._parts:
            numbers |= part._numbers
        return numbers | {one: self._numbers[one] for one in (LOSS, SECONDS) if one in numbers}

    def step_row(self) -> dict[Series, float]:
        """Return the row of the table ``steps``; the numbers must have arrived."""
        row = self._joined_numbers()
        for part in self._parts:
            for state in part.states:
                row |= state.values()
        row |= batch_number(layers.hash for part in self._parts for layers in part.layers)
        if LOSS_SCALE not in row:
            return row
        # The script differentiates the scaled loss.
        scale = row[LOSS_SCALE]
        return {
            series: value / scale if series.key == "loss" else value
            for series, value in row.items()
        }

    def layer_row(self, *, activations: bool) -> dict[Series, float]:
        """Return the row of the table ``layers``, once: it joins parts. Empty if not sampled."""
        scale = self._joined_numbers().get(LOSS_SCALE, 1.0)
        row: dict[Series, float] = {}
        for layers in _joined(layers for part in self._parts for layers in part.layers):
            row |= layers.values(scale, activations=activations)
        measured = _joined(one for part in self._parts for one in part.parameters)
        used = self.called | {part.name for part in measured if part.has_stepped}
        for parameters in measured:
            # Other modules that exist, such as the template of a copied layer, are not trained.
            if parameters.name in used or not used:
                row |= parameters.values(scale)
        return row

    def sketches_of_models(self) -> dict[str, OutputSketches]:
        """Return the sketches of each model, after ``layer_row``, which joins those of parts."""
        parts = [layers for part in self._parts for layers in part.layers]
        first = {layers.name: layers for layers in reversed(parts)}
        called = {name: layers for name, layers in first.items() if layers.called}
        return {name: one.sketches for name, one in called.items() if one.sketches is not None}


def _joined(measures: Iterable[Measures]) -> list[Measures]:
    """Add the numbers of the parts of a step: one for each model, in the order of the first."""
    by_model: dict[str, Measures] = {}
    for one in measures:
        first = by_model.setdefault(one.name, one)
        if first is not one:
            first.join(one)
    return list(by_model.values())


def _value_of(value: Tensor) -> float | Tensor | None:
    """Return a copy of a tensor of one entry: a number if it is on the CPU; None if it has none."""
    # Of a plain tensor on the CPU little is asked: each call costs more than its number.
    is_plain = type(value) is Tensor and value.is_cpu
    if value.is_complex() or not (is_plain or is_measurable(value)):
        return None
    with unnoticed():
        return float(value.item()) if is_on_host(value) else value.detach().reshape(()).clone()
