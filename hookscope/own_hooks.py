"""The user's own hooks at work: functions with PyTorch's signatures, run where they are bound.

Those that change values run before the recording hooks, and so do those that change gradients on
the way back: what is recorded is what went on. For gradients no module backward hook of PyTorch's
is used, since those crash models that work in place; see ``hookscope.gates``.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hookscope.binding import OwnHook
from hookscope.choices import BACKWARD, BACKWARD_PRE, FORWARD, FORWARD_PRE, GRADIENT_HOOKS
from hookscope.emission import RUNNING, Keep, Place
from hookscope.errors import CheckFailed, HookError, HookscopeError
from hookscope.gates import Grads, WayBack, gate
from hookscope.hooks import HookSet, Recorder, inside_backward
from hookscope.modules import Layer
from hookscope.records import Capture
from hookscope.sources.functions import file_of
from hookscope.tensors import map_tensors, outline

log = logging.getLogger("hookscope")


@contextmanager
def values_changed(
    model: nn.Module, hooks: Iterable[OwnHook], recorder: Recorder | None = None
) -> Iterator[None]:
    """Run the hooks of the forward pass at their layers; enter it before the recorder.

    Without a recorder they run and nothing that they emit is kept.
    """
    with _attached(model, [hook for hook in hooks if hook.kind not in GRADIENT_HOOKS], recorder):
        yield


@contextmanager
def gradients_changed(
    model: nn.Module, hooks: Iterable[OwnHook], recorder: Recorder
) -> Iterator[None]:
    """Run the hooks of the backward pass at their layers; enter it after the recorder.

    What they return then goes back through what the recorder listens to.
    """
    with _attached(model, [hook for hook in hooks if hook.kind in GRADIENT_HOOKS], recorder):
        yield


@contextmanager
def carrying(capture: Capture, origin: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Let an error in a hook carry what had been recorded before it, as a whole capture."""
    try:
        yield
    except HookError as error:
        capture.metadata = {**origin(), "failed": error.message}
        error.capture = capture
        raise


@contextmanager
def _attached(model: nn.Module, hooks: list[OwnHook], recorder: Recorder | None) -> Iterator[None]:
    keep = None if recorder is None else recorder.emit
    fittings = {hook: [_Fitting(hook, layer, keep) for layer in hook.layers] for hook in hooks}
    try:
        with HookSet(model) as hook_set:
            for fitting in (one for fitted in fittings.values() for one in fitted):
                fitting.attach(hook_set)
            yield
    finally:
        for fitting in (one for fitted in fittings.values() for one in fitted):
            fitting.open = False
    if keep is not None:
        for hook, fitted in fittings.items():
            _tell(hook, [fitting.runs for fitting in fitted])


def _tell(hook: OwnHook, runs: list[int]) -> None:
    if not any(runs):
        log.warning("hook %s (%s) never ran at any of %d layers", hook.label, hook.kind, len(runs))
        return
    where = f"{sum(map(bool, runs))} of {len(runs)} layer{'' if len(runs) == 1 else 's'}"
    times = f"{sum(runs)} time{'' if sum(runs) == 1 else 's'}"
    log.info("hook: %s (%s) ran %s at %s", hook.label, hook.kind, times, where)


class _Fitting:
    """One hook at one layer: called, watched, and what it returns put in place."""

    def __init__(self, hook: OwnHook, layer: Layer, keep: Keep | None) -> None:
        self.hook = hook
        self.layer = layer
        self.keep = keep
        self.runs = 0
        self.open = True
        self._calls = 0
        self._under_way: list[WayBack] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Fitting:
        return self  # a copy of the model that is made meanwhile has the same hooks

    def attach(self, hook_set: HookSet) -> None:
        """Attach to the layer what this kind of hook needs."""
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
            return gate(output, on_output)
        return _map_each(output, on_tensor)

    def _lend(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        number = self._number()
        way = WayBack(lambda into, out: self._back(number, into, module, into, out))
        self._under_way.append(way)
        return way.enter(args), kwargs

    def _take_back(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._under_way:  # attached while the module was running
            return None
        return self._under_way.pop().leave(output)

    def _number(self) -> int:
        """Which call of the layer this is; 0 where a backward pass only runs it again."""
        if inside_backward():
            return 0
        self._calls += 1
        return self._calls

    def _back(self, number: int, grads: Grads, *arguments: Any) -> Grads:
        """Show gradients to the hook, and return those that go on; a lone ``grad`` is its own."""
        if not self.open:
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
        token = RUNNING.set(Place(self.layer, number, self.keep))
        try:
            return self.hook.function(*arguments)
        except (HookError, CheckFailed):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(number, error) from error
        finally:
            RUNNING.reset(token)

    def _failure(self, number: int, error: BaseException) -> HookError:
        code = file_of(self.hook.function)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == code]
        where = f"line {lines[-1]} of {self.hook.file}, " if lines else ""
        said = error.message if isinstance(error, HookscopeError) else str(error)
        call = f", call {number}" if number > 1 else ""
        cause = f"{type(error).__name__}: {said}".strip().rstrip(".!:")
        return HookError(
            f"The hook {self.hook.label} failed in {where}at layer {self.layer.name}"
            f" ({self.layer.type}{call}): {cause}.",
            self.layer.name,
            "Every hook was taken off. HOOKSCOPE_DEBUG=1 shows the whole traceback.",
        )

    def _demand_same(self, old: Any, new: Any) -> None:
        if outline(old) == outline(new):
            return
        raise HookError(
            f"The hook {self.hook.label} returned {outline(new)} in place of {outline(old)}"
            f" at layer {self.layer.name} ({self.layer.type}).",
            self.layer.name,
            "Return a value of the same structure and shapes, or None to leave it as it is.",
        )


def _map_each(output: Any, function: Callable[[Grads], Grads]) -> Any:
    """Put a gate of its own before each tensor of ``output``."""
    return map_tensors(output, lambda path, tensor: gate(tensor, function))
