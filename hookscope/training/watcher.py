"""Watches the training of a script: finds its models and optimizers, and records each step.

The script computes the same, bit for bit. A fault of hookscope ends the watching alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookscope.errors import cause
from hookscope.files.signal_safety import uninterrupted
from hookscope.hooks.process_hooks import Undo, around_every_step, around_function
from hookscope.hooks.torch_state import inside_backward
from hookscope.specs.patterns import as_texts
from hookscope.specs.watch_options import OPTIMIZER, WatchOptions
from hookscope.stores.runs.run_info import RunEvent, Status, place_of
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import LOSS, LOSS_SCALE, SKIPPED, Series
from hookscope.tensors.torch_internals import DisableTorchFunction, script_compiler
from hookscope.training.bad_value_stop import TrainingStopped
from hookscope.training.found_models import local_part
from hookscope.training.last_passes import BackwardPasses
from hookscope.training.live_answers import LiveAnswers
from hookscope.training.model_hooks import ModelHooks
from hookscope.training.open_steps import OpenSteps
from hookscope.training.run_recorder import RunRecorder
from hookscope.training.state_measures import Generators, StateMeasures
from hookscope.training.tensor_measures import unnoticed
from hookscope.training.watched_models import LateModels, WatchedModels

if TYPE_CHECKING:
    from hookscope.training.run_recorder import LiveRows

log = logging.getLogger("hookscope")

MAX_OPTIMIZERS = 100  # that run.json lists
Callback = Callable[..., None]


class Watcher:
    """Watches the training in this process."""

    def __init__(
        self,
        options: WatchOptions,
        writer: RunWriter,
        models: Mapping[str, nn.Module] | None = None,
        optimizers: Iterable[Optimizer] = (),
        live: LiveRows | None = None,
    ) -> None:
        self.options = options
        self.writer = writer
        self.active = True
        self._process = os.getpid()
        self._thread: int | None = None  # that trains
        # Weak: a later optimizer may have the id of one that is gone.
        self._optimizers: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()
        self.passes = BackwardPasses()
        self._generators = Generators()
        self._models = WatchedModels(as_texts(options.layers or ()), models)
        self._finds_all = models is None
        self._hooks = ModelHooks(options, writer.folder, self.guarded)
        self.recorder = RunRecorder(options, writer, self._models, live)
        self._steps = OpenSteps(options, self._models, self._hooks, self.recorder)
        self._late = LateModels(
            self._models, lambda: self._steps.is_fresh, self._search_models, self.guarded
        )
        self._scaler: Any = None  # within its step
        self._has_stepped = False  # whether the optimizer stepped in it
        self._answers: LiveAnswers | None = None
        self._undo: list[Undo] = []
        for optimizer in optimizers:
            self.add(optimizer)
        self._steps.renew_hooks()

    def install(self) -> None:
        """Begin to watch."""
        guard, train = self._callback, partial(self._callback, one_thread=True)
        self._undo += around_every_step(train(self._before_step), train(self._after_step))
        # TorchScript would compile the hooks, and an export trace them.
        suspend = guard(uninterrupted(self._suspend))
        functions: tuple[tuple[Any, str, Callback | None, Callback | None], ...] = (
            (Optimizer, "__init__", None, guard(self._on_optimizer)),
            (torch.autograd, "backward", train(self._before_backward), train(self._after_backward)),
            (torch.amp.GradScaler, "scale", train(self._on_scale), None),
            (torch.amp.GradScaler, "step", train(self._before_scaler), train(self._after_scaler)),
            (torch, "compile", guard(self._on_compile), None),
            (*script_compiler(), suspend, None),
            (torch.export, "export", suspend, None),
        )
        for owner, name, before, after in functions:
            self._undo.append(around_function(owner, name, before, after))
        if self._finds_all:
            self._undo += self._late.install()
            self._answers = LiveAnswers.of(self.writer)
            if self._answers is not None and not self._optimizers:
                self._answers.watch_calls()
        _watchers.add(self)

    def finish(self, status: Status, exit_status: int | None) -> None:
        """End the watching, and write what is left."""
        if os.getpid() != self._process:
            return
        if not self.active:
            if self.writer.info["status"] == "running":  # the watching failed before the end
                self.recorder.finish(status, exit_status, self._steps.count)
            return
        self.guarded(self._steps.end_last)()
        if not self._steps.count:
            self._models.note("steps", "neither backward() nor a step of an optimizer was called")
        self._finish(status, exit_status)

    def _finish(self, status: Status, exit_status: int | None) -> None:
        self.leave()
        self.recorder.finish(status, exit_status, self._steps.count)

    def guarded(self, function: Callback) -> Callback:
        """Return a function that does nothing once watching has ended, and never raises."""

        def call(*args: Any, **kwargs: Any) -> None:
            if not self.active:
                return
            try:
                # No mode of the script sees what is asked of its tensors.
                with DisableTorchFunction():
                    function(*args, **kwargs)
            except TrainingStopped as stopped:
                self._stop(stopped.event)
                raise
            except Exception as error:
                self._fail(error)
            except BaseException as error:  # Ctrl-C: the script's, as if it came a moment later
                error.__traceback__ = None
                raise

        return call

    def _callback(self, function: Callback, *, one_thread: bool = False) -> Callback:
        """Return ``function`` as it is called around a function of PyTorch."""
        # In sampled steps a signal, such as Ctrl-C, is handled afterwards, so that none is measured
        # in part. In the others, only what changes the hooks or ends a step is protected.
        interruptible = self.guarded(function)
        whole = uninterrupted(interruptible)

        def call(*args: Any, **kwargs: Any) -> None:
            if one_thread and self._thread != get_ident():
                if self._thread is not None:
                    self._models.note("other threads", "a run has the steps of one thread")
                    return
                self._thread = get_ident()
            if self._steps.record.is_sampled:
                whole(*args, **kwargs)
            else:
                interruptible(*args, **kwargs)

        return call

    def _stop(self, event: RunEvent) -> None:
        """Record why the script is ended, and say it."""
        with suppress(Exception, TrainingStopped):  # the step is not complete
            self._steps.end_open()
        self.writer.add_event(event)
        self._finish("stopped", 1)
        info = self.writer.info
        rank = f", rank {info['rank']}" if info["world_size"] > 1 else ""
        text = f"stopped the script at step {event.step} ({place_of(event, info)}{rank})"
        file = f" See {self.writer.place / event.file}." if event.file else ""
        self.writer.warn(f"{text}: {event.message}.{file}")

    def _fail(self, error: Exception) -> None:
        self.leave()
        why = " ".join(cause(error).split())[:200]
        message = f"the watching failed: {type(error).__name__}: {why}"
        self.writer.warn(f"{message}. The script continues, but is no longer watched.")
        log.debug("this is the failure", exc_info=error)
        self.writer.info["incomplete"] = message
        self.recorder.write_info(self._steps.count)
        self.writer.flush()

    def leave(self) -> None:
        """Remove all hooks and record nothing more."""
        self.active = False
        self.recorder.close()
        self._hooks.remove()
        self._steps.leave()
        for undo in self._undo:
            undo()
        self._undo.clear()
        if self._answers is not None:
            self._answers.close()

    # What the script does

    @uninterrupted
    def add(self, optimizer: Optimizer) -> None:
        """Watch an optimizer, and the models that own its parameters."""
        if optimizer in self._optimizers:
            return
        self._begin_training()
        optimizers = self.writer.info["optimizers"]
        kind = type(optimizer).__name__
        same = sum(entry["type"] == kind for entry in optimizers)
        name = f"{kind}{same + 1}" if same else kind
        self._optimizers[optimizer] = name
        self._steps.clock.add(optimizer)
        if self._models.lacks(optimizer):
            self._search_models()
        elif self._models.renew():
            self._steps.renew_hooks()
        trained = [model for model in self._models if model.owns(optimizer)]
        for model in trained:
            model.is_trained = True
        owners = [model.name for model in trained]
        groups = len(optimizer.param_groups)
        if len(optimizers) < MAX_OPTIMIZERS:
            optimizers.append({"name": name, "type": kind, "groups": groups, "models": owners})

    @uninterrupted
    def _search_models(self) -> None:
        self._hooks.remove()
        self._steps.forget()
        self._models.search(self._optimizers)
        self._late.forget()
        self._steps.renew_hooks()

    def _on_optimizer(self, _: None, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        if self._finds_all:
            self.add(optimizer)

    def follow_other_hooks(self, model: nn.Module) -> None:
        """Measure what the edits of a model return, which were just put into it."""
        self.guarded(uninterrupted(self._hooks.follow_others))(model)

    def _suspend(self, *args: Any, **kwargs: Any) -> None:
        self._late.wait_no_more()
        self._hooks.suspend()

    @uninterrupted
    def _on_compile(self, model: Any = None, *args: Any, **kwargs: Any) -> None:
        owner = getattr(model, "__self__", model)  # Module.compile compiles a method
        if model is None or isinstance(owner, Optimizer) or _is_of_package(owner):
            return
        self._late.wait_no_more()
        self._models.on_compile(owner)
        self._steps.renew_hooks()

    def _begin_training(self) -> None:
        """Questions are about the steps of the training from now on, not about single calls."""
        if self._answers is not None:
            self._answers.train()

    def _before_backward(self, tensors: Any = (), *args: Any, **kwargs: Any) -> None:
        self._begin_training()
        if not inside_backward():
            self.passes.note()
        self._steps.before_backward()
        record = self._steps.record
        # Other iterables can be read only once, and are the script's.
        is_list = isinstance(tensors, (list, tuple)) and len(tensors) == 1
        loss = tensors[0] if is_list else tensors
        if isinstance(loss, Tensor) and loss.numel() == 1 and not inside_backward():
            record.add_loss(loss if type(loss) is Tensor else local_part(loss.detach()))
            if not record.has(LOSS_SCALE):  # else the scaler skips the step
                for stop in self._hooks.stops:
                    stop.before_backward(local_part(loss.detach()))

    def _after_backward(self, result: None, *args: Any, **kwargs: Any) -> None:
        if inside_backward():  # of a part that a checkpoint runs again
            return
        # The script may have no optimizer so far: a step ends with each backward pass.
        has_optimizer = bool(self.writer.info["optimizers"])
        if not has_optimizer and not self._steps.count and self._finds_all:
            self._search_models()
        self._steps.after_backward()
        if not self._steps.record.has(LOSS_SCALE):  # else the scaler skips the step
            for stop in self._hooks.stops:
                stop.after_backward()
        if not has_optimizer:
            self._steps.end_step()
            self._begin_step()

    def _before_step(self, optimizer: Optimizer) -> None:
        self._has_stepped = True
        name = self._optimizers.get(optimizer)
        if name is None:
            self._on_optimizer(None, optimizer)
            name = self._optimizers.get(optimizer)
            if name is None:
                return
        self._steps.resume(optimizer)
        if inside_backward():
            for stop in self._hooks.stops:
                stop.check_gradients()
        record = self._steps.record
        if record.is_sampled:
            self._measure_state(name, optimizer)
            for parameters in record.parameters:
                parameters.before_step(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if isinstance(group.get("lr"), int | float | Tensor):
                record.set(_rate_series(name, number), group["lr"])

    def _measure_state(self, name: str, optimizer: Optimizer) -> None:
        """Measure what the step begins with besides the weights."""
        record = self._steps.record
        with unnoticed():
            if not record.states:  # else another optimizer has stepped in it
                for series, value in self._generators.values().items():
                    record.set(series, value)
            if OPTIMIZER in self.options.what:
                record.states.append(StateMeasures(name, optimizer, record.pending))

    def _after_step(self, optimizer: Optimizer) -> None:
        if optimizer not in self._optimizers:
            return
        name = self._optimizers[optimizer]
        record = self._steps.record
        record.end_part(LOSS._replace(model=name) if len(self._optimizers) > 1 else None)
        if record.is_sampled:
            for parameters in record.parameters:
                parameters.after_step(optimizer)
        for stop in self._hooks.stops:
            stop.after_step(optimizer)
        if self._scaler is None:
            self._count_step(optimizer)

    def _on_scale(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled() and scaler._scale is not None:
            self._steps.record.set(LOSS_SCALE, scaler._scale)

    def _before_scaler(self, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self._scaler, self._has_stepped = scaler, False
        self._steps.resume(optimizer)
        if not self._steps.record.has(LOSS_SCALE):
            self._on_scale(scaler)

    def _after_scaler(
        self, result: Any, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> None:
        if scaler.is_enabled():
            state = scaler._per_optimizer_states[id(optimizer)]
            found = sum(count.detach() for count in state["found_inf_per_device"].values())
            # A fused optimizer is called and skips the step itself.
            self._steps.record.set(SKIPPED, found if self._has_stepped else 1.0)
        self._scaler = None
        if optimizer in self._optimizers:
            self._count_step(optimizer)

    def _count_step(self, optimizer: Optimizer) -> None:
        count = self._steps.count
        self._steps.count_step(optimizer)
        self._late.find()
        if self._steps.count > count:
            self._begin_step()

    def _begin_step(self) -> None:
        if self._answers is not None:
            self._answers.between_steps(self._steps.count)


@cache
def _rate_series(optimizer: str, group: int) -> Series:
    """Return the series of the learning rate of a group of parameters of an optimizer."""
    return Series(optimizer, f"groups.{group}", "lr")


_watchers: WeakSet[Watcher] = WeakSet()


def _leave_all() -> None:
    """Remove all hooks: a worker that was forked inherits them, and must not use them."""
    for watcher in list(_watchers):
        watcher.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def _is_of_package(function: object) -> bool:
    """Whether a function is of an installed package, which does not call the script's model."""
    code = getattr(function, "__code__", None)
    return "site-packages" in getattr(code, "co_filename", "") and not isinstance(
        function, nn.Module
    )
