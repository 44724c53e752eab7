"""One hook of the user's own at one layer: when it is called, with what, and what becomes of it.

For gradients no module backward hook of PyTorch's is used, since those crash models that work in
place; see ``hookscope.tensors.gradient_gate``.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, HookError, HookscopeError
from hookscope.hooks.layers import Layer
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet, inside_backward
from hookscope.hooks.tensor_sink import CaptureSink, RecordKey
from hookscope.hooks.user_hooks.emission import CURRENT_HOOK, EmitCallback, HookContext
from hookscope.hooks.user_hooks.hook_loader import UserHook
from hookscope.sources.user_code import function_file
from hookscope.specs.choices import (
    BACKWARD,
    BACKWARD_PRE,
    FORWARD,
    FORWARD_PRE,
    GRADIENT_HOOKS,
    STEP_HOOKS,
    STEP_PRE,
)
from hookscope.specs.record_kinds import EMITTED
from hookscope.tensors.gradient_gate import BackwardHookPair, Grads, insert_gradient_gate
from hookscope.tensors.interrupts import signal_safe_contextmanager
from hookscope.tensors.nested import map_tensors, outline


class _UnderWay(threading.local):
    """The calls of a layer that are under way on this thread, each between its two gates."""

    def __init__(self) -> None:
        self.ways: list[BackwardHookPair] = []


class HookBinding:
    """One hook at one layer: called, watched, and what it returns put in place."""

    def __init__(self, hook: UserHook, layer: Layer, keep: EmitCallback | None) -> None:
        self.hook = hook
        self.layer = layer
        self.keep = keep
        self.runs = 0
        self.open = True
        self._calls = 0
        self._under_way = _UnderWay()
        self._includes_this_thread: Callable[[], bool] = lambda: False

    def attach(self, hook_set: HookSet) -> None:
        """Attach to the layer what this kind of hook needs."""
        self._includes_this_thread = hook_set.threads.includes_current_thread
        module, kind = self.layer.module, self.hook.kind
        if kind == FORWARD_PRE:
            hook_set.before(module, self._before)
        elif kind == FORWARD:
            hook_set.after(module, self._after)
        elif kind == BACKWARD:
            hook_set.before(module, self._lend)
            hook_set.after(module, self._take_back, always=True)
        else:
            hook_set.after(module, self._gate_output)

    def attach_to_step(self, hook_set: HookSet, optimizer: torch.optim.Optimizer) -> None:
        """Attach to the step of an optimizer, before or after it."""

        def call(step: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            if not self.open:
                return None
            result = self._run(1, step, args, kwargs)
            if result is not None and pre:
                self._demand_same((args, kwargs), result)
            return result

        pre = self.hook.kind == STEP_PRE
        hook_set.around_step(optimizer, *((call, None) if pre else (None, call)))

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.open:
            return None
        result = self._run(self._number(), module, args)
        if result is None:
            return None
        result = result if isinstance(result, tuple) else (result,)
        self._demand_same(args, result)
        return result, kwargs

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self.open:
            return None
        result = self._run(self._number(), module, args, output)
        if result is not None:
            self._demand_same(output, result)
        return result

    def _gate_output(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        number = self._number()

        def on_tensor(grads: Grads) -> Grads:
            return self._back(number, grads)

        def on_output(grads: Grads) -> Grads:
            return self._back(number, grads, module, grads)

        if self.hook.kind == BACKWARD_PRE:
            return insert_gradient_gate(output, on_output)
        return _map_each(output, on_tensor)

    def _lend(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        number = self._number()
        way = BackwardHookPair(lambda into, out: self._back(number, into, module, into, out))
        self._under_way.ways.append(way)
        return way.enter(args), kwargs

    def _take_back(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._under_way.ways:  # attached while the module was running
            return None
        return self._under_way.ways.pop().leave(output)

    def _number(self) -> int:
        """Which call of the layer this is; 0 where a backward pass only runs it again."""
        if inside_backward():
            return 0
        self._calls += 1
        return self._calls

    def _back(self, number: int, grads: Grads, *arguments: Any) -> Grads:
        """Show gradients to the hook, and return those that go on; a lone ``grad`` is its own."""
        if not self.open or not self._includes_this_thread():
            return grads
        if not arguments:
            arguments = grads
        result = self._run(number, *arguments)
        if result is None:
            return grads
        result = result if isinstance(result, tuple) else (result,)
        self._demand_same(grads, result)
        return result

    def _run(self, number: int, *arguments: Any) -> Any:
        self.runs += 1
        before = CURRENT_HOOK.get()
        try:
            CURRENT_HOOK.set(HookContext(self.layer, number, self.keep))
            return self.hook.function(*arguments)
        except (HookError, CheckFailed):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(number, error) from error
        finally:
            CURRENT_HOOK.set(before)

    def _failure(self, number: int, error: BaseException) -> HookError:
        code = function_file(self.hook.function)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == code]
        where = f"line {lines[-1]} of {self.hook.file}, " if lines else ""
        said = error.message if isinstance(error, HookscopeError) else str(error)
        cause = f"{type(error).__name__}: {said}".strip().rstrip(".!:")
        return HookError(
            f"The hook {self.hook.label} failed in {where}{self._place(number)}: {cause}.",
            self.layer.name,
            "Every hook was taken off. HOOKSCOPE_DEBUG=1 shows the whole traceback.",
        )

    def _place(self, number: int) -> str:
        if self.hook.kind in STEP_HOOKS:
            return f"{'before' if self.hook.kind == STEP_PRE else 'after'} the optimizer's step"
        call = f", call {number}" if number > 1 else ""
        return f"at layer {self.layer.name} ({self.layer.type}{call})"

    def _demand_same(self, old: Any, new: Any) -> None:
        if outline(old) == outline(new):
            return
        raise HookError(
            f"The hook {self.hook.label} returned {outline(new)} in place of {outline(old)}"
            f" {self._place(1)}.",
            self.layer.name,
            "Return a value of the same structure and shapes, or None to leave it as it is.",
        )


def _map_each(output: Any, function: Callable[[Grads], Grads]) -> Any:
    """Put a gate of its own before each tensor of ``output``."""
    return map_tensors(output, lambda path, tensor: insert_gradient_gate(tensor, function))


log = logging.getLogger("hookscope")


@signal_safe_contextmanager
def attach_user_hooks(
    model: nn.Module,
    hooks: Iterable[UserHook],
    recorder: Recorder | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[None]:
    """Run ``hooks`` at their layers, or around the steps of ``optimizer``, within the block.

    Without a recorder nothing that they emit is kept.
    """
    keep = None if recorder is None else partial(_keep, recorder.sink)
    fittings = {hook: [HookBinding(hook, layer, keep) for layer in hook.layers] for hook in hooks}
    every = [fitting for fitted in fittings.values() for fitting in fitted]
    try:
        with HookSet(model) as hook_set:
            back = [fitting for fitting in every if fitting.hook.kind in GRADIENT_HOOKS]
            others = [fitting for fitting in every if fitting not in back]
            for fitting in (*others, *reversed(back)):  # a gradient meets first what came last
                if fitting.hook.kind not in STEP_HOOKS:
                    fitting.attach(hook_set)
                elif optimizer is not None:
                    fitting.attach_to_step(hook_set, optimizer)
            yield
    finally:
        for fitting in every:
            fitting.open = False
    if keep is not None:
        for hook, fitted in fittings.items():
            _tell(hook, [fitting.runs for fitting in fitted])


def _keep(sink: CaptureSink, layer: Layer, call: int, name: str, tensor: Tensor) -> None:
    sink.keep(RecordKey(layer, call, name, EMITTED), tensor)


def _tell(hook: UserHook, runs: list[int]) -> None:
    if not any(runs):
        log.warning("hook %s (%s) never ran at any of %d layers", hook.label, hook.kind, len(runs))
        return
    times = f"{sum(runs)} time{'' if sum(runs) == 1 else 's'}"
    where = f" at {sum(map(bool, runs))} of {len(runs)} layer{'' if len(runs) == 1 else 's'}"
    place = "" if hook.kind in STEP_HOOKS else where
    log.info("hook: %s (%s) ran %s%s", hook.label, hook.kind, times, place)
