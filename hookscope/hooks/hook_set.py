"""A function as a hook: called only for the threads of a recording, and left out of copies."""

from __future__ import annotations

import copyreg
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.layers import GONE, Layer, WeakLayer
from hookscope.hooks.torch_state import DEEPER_CALLS, EAGER
from hookscope.sources.structure import structure_of
from hookscope.tensors.threads import (
    EveryThread,
    RecordingThreads,
    SharedSetting,
    fork_safe_lock,
)
from hookscope.tensors.torch_internals import DisableTorchFunctionSubclass


class Hook:
    """A function that is called as a hook, for the calls that belong to a recording.

    For a call by another thread it returns None, which changes nothing. It accepts any arguments,
    because a call that runs while it is removed may find it without its options.
    """

    __slots__ = ("_elsewhere", "_module", "_threads", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        threads: RecordingThreads,
        elsewhere: set[nn.Module],
        module: nn.Module | None = None,
    ) -> None:
        self.function = function
        self._threads = threads
        self._elsewhere = elsewhere
        self._module = module

    def __call__(self, *args: Any) -> Any:
        """Call the function as ``as_hook`` does, or do nothing."""
        # The usual cases are written out: this runs once or twice in each call of a module.
        if get_ident() == self._threads.opener or self._threads.includes_current_thread():
            if depth_readers:
                return as_hook(self.function, *args)
            return self.function(*args)
        if self._module is not None:
            self._elsewhere.add(self._module)
        return None


HookDict = dict[int, Any]  # an OrderedDict


class HookId(int):
    """The id of a hook of ours in a module's dicts, by which copies leave it out."""

    __slots__ = ()


_numbers = count(-1, -1)  # so that they differ from ids of PyTorch


@contextmanager
def _left_out_of_copies() -> Iterator[None]:
    """Leave our hooks out of copies and pickles of modules, whose dicts of hooks are OrderedDicts.

    ``copy`` and ``pickle`` look in this table before they ask the object.
    """
    before = copyreg.dispatch_table.get(OrderedDict)
    copyreg.pickle(OrderedDict, partial(_without_ours, before or OrderedDict.__reduce__))
    try:
        yield
    finally:
        if before is None:
            del copyreg.dispatch_table[OrderedDict]
        else:
            copyreg.dispatch_table[OrderedDict] = before


def _without_ours(reduce: Callable[[Any], Any], members: HookDict) -> Any:
    reduced = reduce(members)
    if not any(type(key) is HookId for key in members):
        return reduced
    return (*reduced[:4], ((key, one) for key, one in reduced[4] if type(key) is not HookId))


# A setting of the process.
LEFT_OUT_OF_COPIES = SharedSetting(_left_out_of_copies)


class _Depth(threading.local):
    hooks = 0


_depth = _Depth()

# Who needs ``hook_depth`` now. If there is nobody, calls of hooks are not counted.
depth_readers: set[object] = set()


def as_hook(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as a hook: what it computes is not part of the model."""
    _depth.hooks += 1
    try:
        return function(*args, **kwargs)
    finally:
        _depth.hooks -= 1


def hook_depth() -> int:
    """Return the number of nested calls of ``as_hook`` on this thread, for ``depth_readers``."""
    return _depth.hooks


# PyTorch's counter of hook ids belongs to the process, and a tensor gets its dict of hooks with the
# first one. One thread at a time may change them.
_registering = fork_safe_lock()

_HANDLES = 1000  # of tensors, until dead ones are looked for


class HookSet(SignalSafeContext["HookSet"]):
    """Hooks in and around a model; they are removed when the ``with`` block ends, however it ends.

    Only the thread that entered the block calls them; copies and pickles of the model have none.
    Compiled code calls no hooks, so compiled modules run uncompiled within the block.
    """

    keeps_compiled = False  # True in a subclass whose hooks need no uncompiled run
    keeps_modules = True  # False in one that does not keep the model and its modules alive

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model if self.keeps_modules else ref(model)
        self.threads = RecordingThreads()
        self.called_elsewhere: set[nn.Module] = set()  # those with a hook, by other threads
        self.stands_in_for_compiled = False
        self._attached: list[tuple[HookId, tuple[Any, ...]]] = []  # at modules, with their dicts
        self._handles: list[RemovableHandle] = []
        self._most_handles = _HANDLES

    def _enter(self) -> HookSet:
        self.open()
        return self

    def _leave(self, *error: object) -> None:
        self.close()

    @property
    def model(self) -> nn.Module:
        """The model; ``GONE`` if it was deleted."""
        model: nn.Module = self._model if self.keeps_modules else self._model() or GONE
        return model

    def key_of(self, module: nn.Module) -> Hashable:
        """Return the key that a layer of these hooks has for a module."""
        return module if self.keeps_modules else ref(module)

    def layer(self, name: str, module: nn.Module, aliases: tuple[str, ...] = ()) -> Layer:
        """Return a layer, which keeps its module alive if the hooks do."""
        return (Layer if self.keeps_modules else WeakLayer)(name, module, aliases)

    def open(self) -> None:
        """Enter the block as ``with`` does, but faster, for callers that defer signals."""
        if not self.keeps_compiled:
            self.stands_in_for_compiled = structure_of(self.model).has_compiled()
        if self.stands_in_for_compiled:
            EAGER.acquire()
        DEEPER_CALLS.acquire()
        self.threads.open()

    def close(self) -> None:
        """Leave what ``open`` entered."""
        self.remove()
        self.threads.close()
        DEEPER_CALLS.release()
        if self.stands_in_for_compiled:
            EAGER.release()
            self.stands_in_for_compiled = False

    def remove(self) -> None:
        """Remove the hooks that were added until now."""
        with _registering:
            while self._handles:
                self._handles.pop().remove()
            if self._attached:
                self._detach()

    def part(self) -> HookSet:
        """Return hooks for the same threads, to be removed by ``remove`` while this set is open."""
        part = type(self)(self.model)
        part.threads, part.called_elsewhere = self.threads, self.called_elsewhere
        return part

    def before(
        self, module: nn.Module, function: Callable[..., Any], *, first: bool = False
    ) -> None:
        """Call ``function(module, args, kwargs)``, which may return new ones, before the module.

        With ``first`` it is called before all hooks that are registered already.
        """
        hooks: Any = module._forward_pre_hooks  # an OrderedDict
        self._attach(self._hook(function, module), hooks, module._forward_pre_hooks_with_kwargs)
        if first:
            hooks.move_to_end(self._attached[-1][0], last=False)

    def after(
        self, module: nn.Module, function: Callable[..., Any], *, always: bool = False
    ) -> Hook:
        """Call ``function(module, args, kwargs, output)`` after the module; it may return another.

        With ``always`` it is also called if the module raised, with None as output.
        """
        hook = self._hook(function, module)
        options = (module._forward_hooks_with_kwargs, module._forward_hooks_always_called)
        self._attach(hook, module._forward_hooks, *options[: 1 + always])
        return hook

    def after_any(self, function: Callable[[nn.Module, tuple[Any, ...], Any], None]) -> None:
        """Call ``function(module, args, output)`` after each module of the process, by one hook."""
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
        of_module = module if self.keeps_modules else None
        return Hook(function, self.threads, self.called_elsewhere, of_module)

    def _attach(self, hook: Hook, hooks: HookDict, *options: HookDict) -> None:
        """Register a hook as PyTorch does, which makes a handle besides."""
        with _registering:  # a thread may add a module while the hooks are removed
            if not self._attached:
                LEFT_OUT_OF_COPIES.acquire()
            number = HookId(next(_numbers))
            dicts = (hooks, *options)
            self._attached.append((number, dicts if self.keeps_modules else (*map(ref, dicts),)))
            for members in options:
                members[number] = True
            hooks[number] = hook

    def _detach(self) -> None:
        while self._attached:
            number, dicts = self._attached.pop()
            for members in dicts:
                hooks: HookDict | None = members if self.keeps_modules else members()
                if hooks is not None:
                    hooks.pop(number, None)
        LEFT_OUT_OF_COPIES.release()


class LastingHooks(HookSet):
    """Hooks that stay in a program: called for all threads, and compiled modules stay compiled."""

    keeps_compiled = True
    keeps_modules = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.threads = EveryThread()


def disable_module_fast_path(module: nn.Module) -> None:
    """Register a permanent hook that does nothing.

    PyTorch's transformer layers skip their children's ``forward`` unless one of them has a hook.
    """
    module.register_forward_hook(_nothing)


def _nothing(*_: object) -> None:
    pass
