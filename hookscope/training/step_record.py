"""What is recorded of one step: hooks while it runs, and its rows once its numbers have arrived."""

from __future__ import annotations

import time
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from hookscope.results.runs.series import LOSS, LOSS_SCALE, Series
from hookscope.training.layer_measures import LayerMeasures
from hookscope.training.parameter_measures import ParameterMeasures
from hookscope.training.pending_values import PendingValues
from hookscope.training.tensor_measures import is_measurable, unnoticed

SECONDS = Series("", "step", "seconds")


class MeanLoss:
    """The mean of the losses of some backward passes; it waits for no device."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: float | Tensor = 0.0

    def add(self, loss: float | Tensor) -> None:
        """Add the loss of a backward pass; a tensor is copied."""
        self.count += 1
        self._sum = self._sum + loss

    @property
    def mean(self) -> float | Tensor:
        """The mean; the loss itself if there is one."""
        return self._sum / self.count if self.count > 1 else self._sum


class StepRecord:
    """One step of a training.

    Args:
        step: its number.
        is_sampled: whether layers and parameters are measured.

    Attributes:
        step: its number.
        is_sampled: whether layers and parameters are measured.
        called: names of the models that were called; known once it has ended.
        has_ended: whether ``end`` was called.
        pending: the numbers on devices.
        layers: measures of layers, if it is sampled.
        parameters: measures of parameters, if it is sampled.
        loss: of all backward passes.
    """

    def __init__(self, step: int, is_sampled: bool) -> None:
        self.step = step
        self.is_sampled = is_sampled
        self.called: set[str] = set()
        self.has_ended = False
        self.pending = PendingValues()
        self.layers: list[LayerMeasures] = []
        self.parameters: list[ParameterMeasures] = []
        self.loss = MeanLoss()
        self._part_loss = MeanLoss()  # since the last step of an optimizer
        self._is_new_part = False
        self._numbers: dict[Series, float] = {}
        self._waiting: dict[Series, int] = {}  # on a device: which of the values counts
        self._began = time.perf_counter()

    def add_loss(self, loss: Tensor) -> None:
        """Record the loss of a backward pass, a tensor of one entry that is detached."""
        value = _value_of(loss)
        if value is None:
            return
        if self._is_new_part:
            self._part_loss, self._is_new_part = MeanLoss(), False
        self.loss.add(value)
        self._part_loss.add(value)

    def end_part(self, series: Series) -> None:
        """Record the loss since the last step of an optimizer, another one has stepped now.

        If there was no backward pass since, both have the same loss.
        """
        if self._part_loss.count:
            self.set(series, self._part_loss.mean)
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

    def after_backward(self) -> None:
        """Measure the gradients of parameters."""
        for layers in self.layers:
            layers.is_in_backward = False
        for parameters in self.parameters:
            parameters.after_backward()

    def before_step(self, optimizer: Optimizer) -> None:
        """Measure the parameters that the optimizer will change."""
        for parameters in self.parameters:
            parameters.before_step(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Measure what the optimizer has changed."""
        for parameters in self.parameters:
            parameters.after_step(optimizer)

    def end(self) -> None:
        """Begin to copy the numbers to the host."""
        self.has_ended = True
        if self.loss.count:
            self.set(LOSS, self.loss.mean)
        if self.step:  # it is not known when the first one began
            self._numbers[SECONDS] = time.perf_counter() - self._began
        for layers in self.layers:
            if layers.called:
                self.called.add(layers.name)
            self._numbers |= layers.batch
        for parameters in self.parameters:
            parameters.send()
        self.pending.send()

    def step_row(self) -> dict[Series, float]:
        """Return the row of the table ``steps``; the numbers must have arrived."""
        row = self._numbers
        if LOSS_SCALE not in row:
            return row
        # The script differentiates the scaled loss.
        scale = row[LOSS_SCALE]
        return {
            series: value / scale if series.key == "loss" else value
            for series, value in row.items()
        }

    def layer_row(self, *, activations: bool) -> dict[Series, float]:
        """Return the row of the table ``layers``; empty if the step was not sampled.

        Args:
            activations: whether it has the measures of outputs.
        """
        scale = self._numbers.get(LOSS_SCALE, 1.0)
        row: dict[Series, float] = {}
        for layers in self.layers:
            row |= layers.values(scale, activations=activations)
        used = self.called | {part.name for part in self.parameters if part.has_stepped}
        for parameters in self.parameters:
            # Other modules that exist, such as the template of a copied layer, are not trained.
            if parameters.name in used or not used:
                row |= parameters.values(scale)
        return row


def _value_of(value: Tensor) -> float | Tensor | None:
    """Return a copy of a tensor of one entry: a number if it is on the CPU; None if it has none."""
    # Of a plain tensor on the CPU little is asked: each call costs more than its number.
    is_plain = type(value) is Tensor and value.is_cpu
    if value.is_complex() or not (is_plain or is_measurable(value)):
        return None
    with unnoticed():
        return float(value.item()) if value.is_cpu else value.detach().reshape(()).clone()
