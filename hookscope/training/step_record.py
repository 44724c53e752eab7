"""What is recorded of one step: hooks while it runs, and its rows once its numbers have arrived."""

from __future__ import annotations

import time

from torch import Tensor
from torch.optim import Optimizer

from hookscope.results.runs.series import LOSS_SCALE, Series
from hookscope.training.layer_measures import LayerMeasures
from hookscope.training.parameter_measures import ParameterMeasures
from hookscope.training.pending_values import PendingValues, Slot
from hookscope.training.tensor_measures import is_measurable, unnoticed

SECONDS = Series("", "step", "seconds")


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
    """

    def __init__(self, step: int, is_sampled: bool) -> None:
        self.step = step
        self.is_sampled = is_sampled
        self.called: set[str] = set()
        self.has_ended = False
        self.pending = PendingValues()
        self.layers: list[LayerMeasures] = []
        self.parameters: list[ParameterMeasures] = []
        self._numbers: dict[Series, float] = {}
        self._slots: dict[Series, Slot] = {}
        self._began = time.perf_counter()

    def set(self, series: Series, value: float | Tensor) -> None:
        """Record a number of the step; a tensor of one entry may be on any device."""
        if isinstance(value, Tensor):
            # Of a plain tensor on the CPU nothing is asked: each call costs more than its number.
            is_plain = type(value) is Tensor and value.is_cpu
            if value.is_complex() or not (is_plain or is_measurable(value)):
                return
            with unnoticed():
                if not value.is_cpu:
                    self._numbers.pop(series, None)
                    self._slots[series] = self.pending.add(value.detach().reshape(()).clone())
                    return
                value = value.item()
        if self._slots:
            self._slots.pop(series, None)
        self._numbers[series] = float(value)

    def copy(self, series: Series, other: Series) -> None:
        """Record as ``series`` what was recorded as ``other``, if it was."""
        if other in self._slots:
            self._slots[series] = self._slots[other]
        elif other in self._numbers:
            self._numbers[series] = self._numbers[other]

    def has(self, series: Series) -> bool:
        """Whether a number was recorded."""
        return series in self._slots or series in self._numbers

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
        if self.step:  # it is not known when the first one began
            self._numbers[SECONDS] = time.perf_counter() - self._began
        for layers in self.layers:
            if layers.called:
                self.called.add(layers.name)
            self._numbers |= layers.batch
        for parameters in self.parameters:
            parameters.send()
        if self.is_sampled or self._slots:
            self.pending.send()

    def step_row(self) -> dict[Series, float]:
        """Return the row of the table ``steps``; the numbers must have arrived."""
        row = self._numbers
        if self._slots:
            row = row | {series: slot.number() for series, slot in self._slots.items()}
        if LOSS_SCALE not in row:
            return row
        scale = row[LOSS_SCALE]
        # The script differentiates the scaled loss.
        return {
            series: value / scale if series.key == "loss" else value
            for series, value in row.items()
        }

    def layer_row(self, *, activations: bool) -> dict[Series, float]:
        """Return the row of the table ``layers``; empty if the step was not sampled.

        Args:
            activations: whether it has the measures of outputs.
        """
        scale = self.step_row().get(LOSS_SCALE, 1.0)
        row: dict[Series, float] = {}
        for layers in self.layers:
            row |= layers.values(scale, activations=activations)
        used = self.called | {part.name for part in self.parameters if part.has_stepped}
        for parameters in self.parameters:
            # Other modules that exist, such as the template of a copied layer, are not trained.
            if parameters.name in used or not used:
                row |= parameters.values(scale)
        return row
