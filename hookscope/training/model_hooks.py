"""The hooks on all watched models: to measure in sampled steps, and to stop at a bad value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hookscope.specs.watch_options import (
    ACTIVATIONS,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    WatchOptions,
)
from hookscope.training.bad_value_stop import FAULTS, BadValueStop
from hookscope.training.layer_measures import Guard, LayerHooks, LayerMeasures
from hookscope.training.parameter_measures import ParameterMeasures
from hookscope.training.step_record import StepRecord
from hookscope.training.watched_models import EVALUATED, WatchedModels

if TYPE_CHECKING:
    from hookscope.training.output_sketches import OutputSketches


class ModelHooks:
    """Hooks on the layers of models, made anew when a model is found."""

    def __init__(self, options: WatchOptions, folder: Path, guard: Guard) -> None:
        self._what = options.what
        self._new_sketches: Callable[[], OutputSketches] | None = None
        if options.fingerprint:  # few runs need what it imports
            from hookscope.training.output_sketches import OutputSketches

            self._new_sketches = OutputSketches
        self._kinds = [kind for kind in FAULTS if kind in options.stop_on]
        self._folder = folder
        self._guard = guard
        self._models: WatchedModels | None = None
        self._hooks: list[LayerHooks] = []
        self.stops: list[BadValueStop] = []
        self._is_suspended = False

    @property
    def has_work(self) -> bool:
        """Whether a step must begin for them although it is not sampled."""
        return self._is_suspended or bool(self.stops)

    def renew(self, models: WatchedModels, record: StepRecord, step: int) -> None:
        """Make all hooks anew: a model was found, or a part of one was compiled."""
        self.remove()
        self._models = models
        if self._new_sketches or ACTIVATIONS in self._what or GRADIENTS in self._what:
            self._hooks = [
                LayerHooks(
                    model.name,
                    model.module,
                    models.layers_with_hooks(model),
                    self._guard,
                    gradients=GRADIENTS in self._what,
                    is_trained=partial(getattr, model, "is_trained"),
                )
                for model in models
            ]
        if self._kinds:
            self.stops = [
                BadValueStop(
                    model.name,
                    model.module,
                    models.layers_with_hooks(model),
                    self._kinds,
                    self._folder,
                    self._guard,
                )
                for model in models
            ]
        self._is_suspended = True
        self.begin(record, step)

    def begin(self, record: StepRecord, step: int) -> None:
        """Begin the step with the number ``step``."""
        if self._is_suspended:
            self._is_suspended = False
            for stop in self.stops:
                stop.attach()
        for stop in self.stops:
            stop.begin_step(step)
        if record.is_sampled:
            self._measure(record, LayerHooks.begin)
        else:
            self.detach()

    def begin_part(self, record: StepRecord) -> None:
        """Begin a part of a step; the part before it may still get gradients."""
        if record.is_sampled:
            self._measure(record, LayerHooks.begin_part)
        else:
            self.detach()

    def _measure(self, record: StepRecord, begin: Callable[..., LayerMeasures]) -> None:
        new = self._new_sketches if record.sketches else None
        record.layers = [begin(hooks, record.pending, new and new()) for hooks in self._hooks]
        record.parameters = [
            ParameterMeasures(
                model.name, model.parameters, record.pending, optimizer=OPTIMIZER in self._what
            )
            for model in self._models or ()
            if PARAMETERS in self._what
        ]

    def end(self) -> None:
        """End the measuring of a step; hooks stay for the next one."""
        for hooks in self._hooks:
            hooks.end()
            if hooks.was_evaluated and self._models is not None:
                self._models.note(f"calls of {hooks.name} in evaluation", EVALUATED)

    def follow_others(self, model: nn.Module) -> None:
        """Let the hooks on a model run after those that were put into it since."""
        for hooks in self._hooks:
            hooks.follow_others(model)
        for stop in self.stops:
            if not self._is_suspended and stop.watches(model):
                stop.detach()
                stop.attach()

    def detach(self) -> None:
        """Remove the hooks that measure."""
        for hooks in self._hooks:
            hooks.detach()

    def suspend(self) -> None:
        """Remove all hooks until the next step begins."""
        self.detach()
        for stop in self.stops:
            stop.detach()
        self._is_suspended = True

    def remove(self) -> None:
        """Remove all hooks for good."""
        self.suspend()
        self._hooks, self.stops = [], []
