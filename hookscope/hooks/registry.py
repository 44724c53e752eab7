"""The only file that registers hooks and numbers the calls of modules.

``HookSet`` registers hooks on modules, tensors and optimizers and removes them. ``CallRegistry``
numbers the calls of modules and passes each to its subscribers: recorder, editor, user hooks,
tracer and others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from hookscope.hooks.hook import Hook, HookDict, keep_in_copies, leave_out_of_copies
from hookscope.hooks.hooked_module import HookedModule
from hookscope.hooks.layers import Layer, modules_in
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.torch_state import DEEPER_CALLS, EAGER, inside_backward, is_compiled
from hookscope.tensors.signal_safety import SignalSafeContext, signal_safe_contextmanager
from hookscope.tensors.threads import RecordingThreads, fork_safe_lock
from hookscope.tensors.torch_internals import CALL_CODE, DisableTorchFunctionSubclass

# The counter of hook ids belongs to the process, and a tensor gets its dict of hooks with the first
# one. One thread at a time may change them.
_registering = fork_safe_lock()

_HANDLES = 1000  # of tensors, until those that are not needed any more are looked for


class HookSet(SignalSafeContext["HookSet"]):
    """Hooks in and around a model; they are removed when the ``with`` block ends, however it ends.

    They are called only for the thread that entered the block; see ``hookscope.tensors.threads``. A
    copy or a pickle of the model that is made within the block has none. Compiled code calls no
    hooks, so compiled modules run uncompiled within the block.

    Args:
        model: the model that will run.

    Attributes:
        called_elsewhere: modules with a hook that were called by other threads.
        keeps_compiled: whether compiled modules stay compiled; set by a subclass that hooks none.
    """

    keeps_compiled = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.threads = RecordingThreads()
        self.called_elsewhere: set[nn.Module] = set()
        self.stands_in_for_compiled = False
        self._handles: list[RemovableHandle] = []
        self._most_handles = _HANDLES
        self._left_out: dict[int, tuple[HookDict, ...]] = {}

    def _enter(self) -> HookSet:
        if not self.keeps_compiled:
            self.stands_in_for_compiled = any(map(is_compiled, modules_in(self.model)))
        if self.stands_in_for_compiled:
            EAGER.acquire()
        DEEPER_CALLS.acquire()
        self.threads.open()
        return self

    def _leave(self, *error: object) -> None:
        with _registering:
            while self._handles:
                self._handles.pop().remove()
            while self._left_out:
                keep_in_copies(*self._left_out.popitem()[1])
        self.threads.close()
        DEEPER_CALLS.release()
        if self.stands_in_for_compiled:
            EAGER.release()
            self.stands_in_for_compiled = False

    @contextmanager
    def attaching(self) -> Iterator[HookSet]:
        """Enter, for a block that adds hooks; if it fails, all of them are removed.

        For code that enters and leaves in two functions: the caller still has to call ``__exit__``.
        """
        try:
            yield self.__enter__()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def before(
        self, module: nn.Module, function: Callable[..., Any], *, first: bool = False
    ) -> None:
        """Call ``function(module, args, kwargs)`` before the module; it may return new ones.

        With ``first`` it is called before all hooks that are registered already.
        """
        with _registering:
            self._handles.append(
                module.register_forward_pre_hook(
                    self._hook(function, module), with_kwargs=True, prepend=first
                )
            )
            self._leave_out_of_copies(
                module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs
            )

    def after(
        self, module: nn.Module, function: Callable[..., Any], *, always: bool = False
    ) -> Hook:
        """Call ``function(module, args, kwargs, output)`` after the module.

        The function may return a new output. With ``always`` it is also called if the module
        raised, with None as output. The function of the hook that is returned may be replaced.
        """
        hook = self._hook(function, module)
        with _registering:
            self._handles.append(
                module.register_forward_hook(hook, with_kwargs=True, always_call=always)
            )
            self._leave_out_of_copies(
                module._forward_hooks,
                module._forward_hooks_with_kwargs,
                module._forward_hooks_always_called,
            )
        return hook

    def after_any(self, function: Callable[[nn.Module, tuple[Any, ...], Any], None]) -> None:
        """Call ``function(module, args, output)`` after each module that the thread calls.

        This is one hook for the process, which costs less than a hook on each module. Modules that
        are not part of the model call it too.
        """
        with _registering:
            self._handles.append(register_module_forward_hook(self._hook(function)))

    def listen(self, tensor: Tensor, function: Callable[[Tensor | None], Any]) -> None:
        """Call ``function`` with the gradient of ``tensor``; its result replaces the gradient."""
        # So a subclass does not notice, and a parameter that has no shape yet does not raise.
        with _registering, DisableTorchFunctionSubclass():
            self._handles.append(tensor.register_hook(self._hook(function)))
            if len(self._handles) >= self._most_handles:
                # Those of tensors that are gone, of which there may be any number in time.
                self._handles = [one for one in self._handles if one.hooks_dict_ref() is not None]
                self._most_handles = max(_HANDLES, 2 * len(self._handles))

    def listeners_of(self, tensor: Tensor) -> list[Callable[..., Any]]:
        """Return the functions of ``listen`` at a tensor, also those of other sets of hooks."""
        with DisableTorchFunctionSubclass():
            hooks = tensor._backward_hooks
        return [hook.function for hook in hooks.values() if type(hook) is Hook] if hooks else []

    def listen_to_node(
        self, node: Node, function: Callable[[tuple[Tensor | None, ...], object], None]
    ) -> None:
        """Call ``function(grad_inputs, grad_outputs)`` when a node of the graph has run."""
        with _registering:
            self._handles.append(node.register_hook(self._hook(function)))

    def on_registration(
        self,
        of_module: Callable[[nn.Module, str, nn.Module], None],
        of_parameter: Callable[[nn.Module, str, nn.Parameter], None],
    ) -> None:
        """Call the functions with ``(owner, name, new)`` when a module gets a child or a parameter.

        PyTorch calls them for every module of the process, so they must check the owner.
        """
        with _registering:
            self._handles += (
                register_module_module_registration_hook(self._hook(of_module)),
                register_module_parameter_registration_hook(self._hook(of_parameter)),
            )

    def around_step(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> None:
        """Call ``before`` and ``after`` with ``(optimizer, args, kwargs)`` around each step."""
        with _registering:
            if before is not None:
                self._handles.append(optimizer.register_step_pre_hook(self._hook(before)))
            if after is not None:
                self._handles.append(optimizer.register_step_post_hook(self._hook(after)))

    def _hook(self, function: Callable[..., Any], module: nn.Module | None = None) -> Hook:
        return Hook(function, self.threads, self.called_elsewhere, module)

    def _leave_out_of_copies(self, hooks: HookDict, *options: HookDict) -> None:
        self._left_out[id(hooks)] = (hooks, *options)
        leave_out_of_copies(hooks, *options)


class _OpenCalls(threading.local):
    """The open calls on this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[ModuleCall] = []


class CallRegistry:
    """Numbers the calls of a model's modules and passes each call to its subscribers.

    Every module has one pair of hooks, or one hook, whatever the number of subscribers. Subscribers
    are called in the order in which they subscribed, before a call and after it.

    A call gets its number when it begins, so numbers do not depend on which calls return, and every
    subscriber sees the same number. With one hook, it gets its number when it ends, so a call that
    an interrupt ended has none; see ``HookedModule``. Replicas of a module that several threads run
    count as the module itself. Calls of threads that are not part of the recording have no number;
    see ``hookscope.tensors.threads``.

    Args:
        model: the model that will run.

    Attributes:
        hooks: the hooks on modules; registered while there is a subscriber.
        counts: how many calls of each module have begun, in the order of their first calls.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.hooks = HookSet(model)
        self.counts: dict[nn.Module, int] = {}
        self._subscribers: list[CallSubscriber] = []
        self._modules: dict[nn.Module, HookedModule] = {}
        self._open = _OpenCalls()
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._is_paused = False

    def subscribe(
        self, subscriber: CallSubscriber, layers: Iterable[Layer], *, first: bool = False
    ) -> None:
        """Pass the calls of ``layers`` to ``subscriber``; may be called again to add layers.

        With ``first`` its ``before_call`` runs before the model's own hooks. Call it only where
        signals are deferred.
        """
        is_new = subscriber not in self._subscribers
        if is_new:
            if not self._subscribers:
                self.hooks.__enter__()
            self._subscribers.append(subscriber)
        try:
            for layer in layers:
                if layer.module not in self._modules:
                    self._modules[layer.module] = HookedModule(self, layer)
                self._modules[layer.module].add(subscriber, first=first)
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
            self.hooks.__exit__(None, None, None)
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

    def counts_of(self, modules: Container[nn.Module]) -> dict[nn.Module, int]:
        """Return how often each of ``modules`` was called, in the order of their first calls."""
        return {module: count for module, count in self.counts.items() if module in modules}

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
        number = self.number(layer)
        call = ModuleCall(layer, module, number, inside_backward())
        calls.append(call)
        return call

    def number(self, layer: Layer) -> int:
        """Return the number of another call of a layer; 0 if it does not count."""
        if self._is_paused or inside_backward():
            return 0
        with self._counting:
            number = self.counts[layer.module] = self.counts.get(layer.module, 0) + 1
        return number

    def find(self, module: nn.Module, kwargs: dict[str, Any]) -> ModuleCall | None:
        """Return the call of ``module`` on this thread that PyTorch calls a hook for.

        A call that an interrupt ended may be left above it. ``kwargs`` distinguishes them: PyTorch
        makes a dict for each call, which only a hook that is not ours may replace.
        """
        calls = self._open.calls
        if calls and calls[-1].layer.module is module and calls[-1].kwargs is kwargs:
            return calls[-1]
        calls = [call for call in calls if call.layer.module is module]
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

        PyTorch calls no hook when a call ends with an exception that is not an ``Exception``, such
        as KeyboardInterrupt, and the recording may continue after it.
        """
        calls = self._open.calls
        modules = {call.layer.module for call in calls}
        frame: FrameType | None = sys._getframe(1)
        outermost = False
        while frame is not None:
            if frame.f_code is CALL_CODE:
                module = frame.f_locals["self"]
                if outermost and module in modules:
                    return
                outermost |= module is self.model
            frame = frame.f_back
        if outermost:
            self.end(calls[0])


def disable_module_fast_path(module: nn.Module) -> None:
    """Register a permanent hook that does nothing.

    PyTorch's transformer layers skip their children's ``forward`` unless one of them has a hook.
    """
    module.register_forward_hook(_nothing)


def _nothing(*_: object) -> None:
    pass
