"""The hooks of one module, which pass its calls to subscribers.

Usually one hook runs before the module and one after it. One hook after the module is enough if it
cannot call itself or other modules, and no subscriber needs to know when its calls begin. Most
modules of a model are such modules, and a hook takes as long as a small module itself.
"""

from __future__ import annotations

import os
import sys
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.torch_state import inside_backward
from hookscope.tensors.torch_internals import CALL_CODE

if TYPE_CHECKING:
    from hookscope.hooks.registry import CallRegistry


_TORCH = os.path.dirname(torch.__file__) + os.sep


class HookedModule:
    """The hooks on a module, which pass its calls to subscribers.

    Args:
        registry: numbers the calls and registers the hooks.
        layer: the module.
    """

    def __init__(self, registry: CallRegistry, layer: Layer) -> None:
        self.layer = layer
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
        self._subscribers = tuple(x for x in self._subscribers if x is not subscriber)
        self._first = tuple(x for x in self._first if x is not subscriber)

    def _add_hook_before(self) -> None:
        if not self._has_hook_before:
            self._has_hook_before = True
            if self.layer.module._forward_pre_hooks:
                self._add_first_hook()
            self._registry.hooks.before(self.layer.module, self._before)

    def _add_first_hook(self) -> None:
        """Begin a call before the model's own hooks, which may raise or call the module again.

        PyTorch calls ``_after`` even if such a hook raises, and it must find the call.
        """
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
        call = self._registry.find(self.layer.module, kwargs) if self._has_first_hook else None
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
        call = self._registry.find(self.layer.module, kwargs)
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
        layer, number = self.layer, self._registry.number(self.layer)
        recomputed = not number and inside_backward()
        failed = _has_failed()  # PyTorch calls this hook for a failed call too
        value = None if failed else output
        call = ModuleCall(layer, module, number, recomputed, args, kwargs, value, failed)
        call.has_returned = True
        for subscriber in self._subscribers:
            subscriber.on_return(call)
        return None if call.output is value else call.output


def _has_failed() -> bool:
    """Whether the call that the current hook belongs to raised the error that is being handled.

    The caller may also handle another one while it calls the module.
    """
    error = sys.exc_info()[1]
    if error is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not CALL_CODE:
        frame = frame.f_back
    return any(other is frame for other, _ in walk_tb(error.__traceback__))


def calls_no_module(module: nn.Module) -> bool:
    """Whether a call of a module calls no other module.

    True for the modules of PyTorch without children, if nothing was attached to this one.
    Containers may get children during a call, and a loss may have a function of the caller's.

    Example:
        >>> calls_no_module(nn.Linear(2, 2)), calls_no_module(nn.MultiheadAttention(2, 1))
        (True, False)
    """
    kind = type(module)
    code = getattr(kind.forward, "__code__", None)
    return (
        kind.__module__.startswith("torch.nn.modules.")
        and not kind.__module__.endswith((".container", ".loss"))
        and code is not None
        and code.co_filename.startswith(_TORCH)  # not replaced
        and not (module._modules or module._forward_pre_hooks or module._forward_hooks)
        and "forward" not in vars(module)
    )
