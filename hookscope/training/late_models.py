"""Models that are made after the optimizers, such as a network for the loss or a teacher."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import torch
from torch import nn

from hookscope.hooks.process_hooks import Undo, before_any_call, on_new_parameters
from hookscope.tensors.torch_internals import is_tracing
from hookscope.training.open_steps import OpenSteps
from hookscope.training.watched_models import WatchedModels


class LateModels:
    """Notices modules that get parameters, and has the models searched for."""

    def __init__(
        self,
        models: WatchedModels,
        steps: OpenSteps,
        search: Callable[[], None],
        guard: Callable[[Callable[..., None]], Callable[..., None]],
    ) -> None:
        self._models = models
        self._steps = steps
        self._search = search
        self._guard = guard
        self._new: WeakSet[nn.Module] = WeakSet()
        self._stop_waiting: Undo | None = None

    def install(self) -> list[Undo]:
        """Begin to notice new modules; return how to end it."""
        return [*on_new_parameters(self._guard(self._on_module)), self.wait_no_more]

    def _on_module(self, module: nn.Module) -> None:
        if not self._models.can_search:
            return
        self._new.add(module)
        # A hook on all modules would be compiled.
        if self._stop_waiting is None and not self._models.has_compiled:
            self._stop_waiting = before_any_call(self._guard(self._on_call))

    def _on_call(self, module: nn.Module) -> None:
        if not (torch.compiler.is_compiling() or is_tracing()):
            self.find()

    def find(self) -> None:
        """Search for new models, unless something of the current step would be lost."""
        if not self._new or not self._steps.is_fresh:
            return
        self.wait_no_more()
        known = {id(weight) for model in self._models for weight in model.module.parameters()}
        # An exported or traced copy has the parameters of its model.
        is_new = any(
            id(weight) not in known
            for module in self._new
            for weight in module._parameters.values()
            if weight is not None
        )
        self._new.clear()
        if is_new:
            self._search()

    def forget(self) -> None:
        """Forget the new modules: all models were searched for."""
        self.wait_no_more()
        self._new.clear()

    def wait_no_more(self) -> None:
        """Remove the hook on all modules; a step of an optimizer has them searched for, too."""
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None
