"""Numbers the calls of modules and passes each to its subscribers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.files.frame_variables import variables_of
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.torch_state import inside_backward
from hookscope.tensors.torch_internals import CALL_CODE

_TORCH = os.path.dirname(torch.__file__) + os.sep


class HookedModule:
    """The hooks on a module, which pass its calls to subscribers."""

    __slots__ = (
        *("layer", "_key", "_registry", "_subscribers", "_first", "_hook_after"),
        *("_has_first_hook", "_has_hook_before"),
    )

    def __init__(self, registry: CallRegistry, layer: Layer) -> None:
        self.layer = layer
        self._key = layer.key
        self._registry = registry
        self._subscribers: tuple[CallSubscriber, ...] = ()  # replaced as a whole: threads read it
        self._first: tuple[CallSubscriber, ...] = ()
        self._has_first_hook = False
        self._has_hook_before = False
        if not calls_no_module(layer.module):
            self._add_hook_before()
        function = self._after if self._has_hook_before else self._after_alone
        self._hook_after = registry.hooks.after(layer.module, function, always=True)

    def add(self, subscriber: CallSubscriber, *, first: bool) -> None:
        """Pass the calls to ``subscriber`` too."""
        if subscriber in self._subscribers:
            return
        if first or subscriber.needs_begin(self.layer):
            self._add_hook_before()
            self._hook_after.function = self._after
        if first:
            self._add_first_hook()
            self._first = (*self._first, subscriber)
        self._subscribers = (*self._subscribers, subscriber)

    def remove(self, subscriber: CallSubscriber) -> None:
        """Pass no more calls to ``subscriber``."""
        self._subscribers = _without(self._subscribers, subscriber)
        self._first = _without(self._first, subscriber)

    def _add_hook_before(self) -> None:
        if not self._has_hook_before:
            self._has_hook_before = True
            if self.layer.module._forward_pre_hooks:
                self._add_first_hook()
            self._registry.hooks.before(self.layer.module, self._before)

    def _add_first_hook(self) -> None:
        """Begin a call before the model's own hooks, which may raise or call the module again."""
        if not self._has_first_hook:
            self._has_first_hook = True
            self._registry.hooks.before(self.layer.module, self._begin, first=True)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = self._registry.begin(self.layer, module)
        call.args, call.kwargs = args, kwargs
        for subscriber in self._first:
            call.states[subscriber] = subscriber.before_call(call)

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        call = self._registry.find(self.layer, kwargs) if self._has_first_hook else None
        if call is None or call.entered:
            call = self._registry.begin(self.layer, module)
        call.entered = True
        call.args, call.kwargs = args, kwargs
        for subscriber in self._subscribers:
            if subscriber not in self._first:
                call.states[subscriber] = subscriber.before_call(call)
        new_args, new_kwargs = call.args, call.kwargs
        call.args = ()  # would keep the tensors alive while the module runs
        return None if new_args is args and new_kwargs is kwargs else (new_args, new_kwargs)

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        call = self._registry.find(self.layer, kwargs)
        if call is None:  # it began before the hooks were registered
            return None
        # PyTorch calls this hook for a failed call too.
        call.failed = _has_failed()
        call.args, call.kwargs = args, kwargs
        call.output = None if call.failed else output
        failure: Exception | None = None
        self._registry.abandon_inner(call)
        try:
            for subscriber in self._subscribers:
                if subscriber not in call.states:  # its ``before_call`` raised, or did not run
                    continue
                try:
                    subscriber.after_call(call, call.states[subscriber])
                except Exception as error:  # for later subscribers the call has failed
                    failure = failure or error
                    call.failed, call.output = True, None
                del call.states[subscriber]
        finally:
            self._registry.end(call)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it refers to this frame, which refers to the tensors
        return None if call.output is output else call.output

    def _after_alone(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Pass on a call whose begin no subscriber needs to know."""
        layer = self.layer
        recomputed = inside_backward()
        number = 0 if recomputed else self._registry.number(self._key)
        failed = _has_failed()  # PyTorch calls this hook for a failed call too
        subscribers = self._subscribers
        is_plain = type(output) is Tensor and not failed and len(subscribers) == 1
        if is_plain and subscribers[0].on_tensor(layer, number, output):
            return None
        value = None if failed else output
        call = ModuleCall(layer, module, number, recomputed, args, kwargs, value, failed)
        call.has_returned = True
        for subscriber in subscribers:
            subscriber.on_return(call)
        return None if call.output is value else call.output


def _without(
    subscribers: tuple[CallSubscriber, ...], one: CallSubscriber
) -> tuple[CallSubscriber, ...]:
    """``subscribers`` without one of them, of which there is seldom another."""
    return () if subscribers == (one,) else tuple(x for x in subscribers if x is not one)


def _has_failed() -> bool:
    """Whether the error that is being handled was raised by the call of the current hook."""
    error = sys.exc_info()[1]
    if error is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not CALL_CODE:
        frame = frame.f_back
    return any(other is frame for other, _ in walk_tb(error.__traceback__))


def calls_no_module(module: nn.Module) -> bool:
    """Whether a call of a module calls no other module, as for those of PyTorch without children.

    Containers may get children during a call, and a loss may have a function of the caller's.
    """
    kind = type(module)
    if _LEAVES.get(kind) is not kind.forward and not _is_leaf_class(kind):
        return False
    return not (
        module._modules or module._forward_pre_hooks or module._forward_hooks
    ) and "forward" not in vars(module)


# Classes of PyTorch whose ``forward`` calls no module of its own, with that function.
_LEAVES: dict[type[nn.Module], Callable[..., Any]] = {}


def _is_leaf_class(kind: type[nn.Module]) -> bool:
    code = getattr(kind.forward, "__code__", None)
    is_leaf = (
        kind.__module__.startswith("torch.nn.modules.")
        and not kind.__module__.endswith((".container", ".loss"))
        and code is not None
        and code.co_filename.startswith(_TORCH)  # not replaced
    )
    if is_leaf:
        _LEAVES[kind] = kind.forward
    return is_leaf


class _OpenCalls(threading.local):
    """The open calls on this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[ModuleCall] = []


class CallRegistry:
    """Numbers the calls of a model's modules and passes each call to its subscribers.

    Subscribers are called in the order in which they subscribed, before a call and after it. A call
    gets its number when it begins, so numbers do not depend on which calls return. With one hook,
    it gets it when it ends; see ``HookedModule``. Replicas of a module count as the module itself.
    """

    def __init__(self, model: nn.Module, hooks: HookSet | None = None) -> None:
        self.hooks = HookSet(model) if hooks is None else hooks  # while there is a subscriber
        # Calls that have begun, by the keys of layers, in order of first calls.
        self.counts: dict[Hashable, int] = {}
        self._subscribers: list[CallSubscriber] = []
        self._modules: dict[Hashable, HookedModule] = {}
        self._open = _OpenCalls()
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._is_paused = False

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.hooks.model

    def subscribe(
        self, subscriber: CallSubscriber, layers: Iterable[Layer], *, first: bool = False
    ) -> None:
        """Pass the calls of ``layers`` to ``subscriber``; may be called again to add layers.

        With ``first`` it begins before the model's own hooks. Signals must be deferred.
        """
        is_new = subscriber not in self._subscribers
        if is_new:
            if not self._subscribers:
                self.hooks.open()
            self._subscribers.append(subscriber)
        try:
            for layer in layers:
                if layer.key not in self._modules:
                    self._modules[layer.key] = HookedModule(self, layer)
                self._modules[layer.key].add(subscriber, first=first)
        except BaseException:
            if is_new:
                self.unsubscribe(subscriber)
            raise

    def unsubscribe(self, subscriber: CallSubscriber) -> None:
        """Pass no more calls to ``subscriber``; all hooks are removed with the last subscriber."""
        if subscriber not in self._subscribers:
            return
        self._subscribers.remove(subscriber)
        for hooked in self._modules.values():
            hooked.remove(subscriber)
        if not self._subscribers:
            self.hooks.close()
            self._modules.clear()
            self._open = _OpenCalls()

    @signal_safe_contextmanager
    def subscribed(self, subscriber: CallSubscriber, layers: Iterable[Layer]) -> Iterator[None]:
        """Pass the calls of ``layers`` within the block to ``subscriber``."""
        self.subscribe(subscriber, layers)
        try:
            yield
        finally:
            self.unsubscribe(subscriber)

    def counts_of(self, keys: Container[Hashable]) -> dict[Hashable, int]:
        """Return how often each layer was called, by key, in the order of their first calls."""
        return {key: count for key, count in self.counts.items() if key in keys}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not number the calls that begin within the block."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def begin(self, layer: Layer, module: nn.Module) -> ModuleCall:
        """Number a call that begins. ``module`` is that of the layer or a replica of it."""
        calls = self._open.calls
        if calls and module is self.model:
            self._abandon_interrupted()
        recomputed = inside_backward()
        number = 0 if recomputed else self.number(layer.key)
        call = ModuleCall(layer, module, number, recomputed)
        calls.append(call)
        return call

    def number(self, key: Hashable) -> int:
        """Return the number of another call of a layer; 0 if it does not count."""
        if self._is_paused:
            return 0
        with self._counting:
            number = self.counts[key] = self.counts.get(key, 0) + 1
        return number

    def find(self, layer: Layer, kwargs: dict[str, Any]) -> ModuleCall | None:
        """Return the call of ``layer`` on this thread that PyTorch calls a hook for.

        A call that an interrupt ended may be left above it. Each call has its own ``kwargs``.
        """
        calls = self._open.calls
        if calls and calls[-1].layer is layer and calls[-1].kwargs is kwargs:
            return calls[-1]
        calls = [call for call in calls if call.layer is layer]
        same = (call for call in reversed(calls) if call.kwargs is kwargs)
        return next(same, calls[-1] if calls else None)

    def abandon_inner(self, call: ModuleCall) -> None:
        """Remove the calls within ``call`` that ended with an interrupt that the model caught."""
        calls = self._open.calls
        while calls and calls[-1] is not call:
            self._remove_last()

    def end(self, call: ModuleCall) -> None:
        """Remove a call, and those within it."""
        self.abandon_inner(call)
        if self._open.calls:
            self._remove_last()

    def _remove_last(self) -> None:
        last = self._open.calls.pop()
        for subscriber, state in last.states.items():
            subscriber.abandon_call(last, state)

    def _abandon_interrupted(self) -> None:
        """Forget this thread's open calls if none of them is on its stack.

        PyTorch calls no hook when KeyboardInterrupt ends a call, and the recording may continue.
        """
        calls = self._open.calls
        modules = {call.layer.module for call in calls}
        frame: FrameType | None = sys._getframe(1)
        outermost = False
        while frame is not None:
            if frame.f_code is CALL_CODE:
                module = variables_of(frame).get("self")
                if outermost and module in modules:
                    return
                outermost |= module is self.model
            frame = frame.f_back
        if outermost:
            self.end(calls[0])
