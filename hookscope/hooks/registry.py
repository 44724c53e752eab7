"""The only file that registers hooks: on modules, tensors and optimizers, and takes them off again.

What the hooks do is the business of whoever attaches them: ``recorder``, ``edits``, ``own_hooks``,
``tracing``.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _len_torch_function_stack
from torch.autograd.graph import Node
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils.hooks import RemovableHandle

from hookscope.specs.record_kinds import INPUT
from hookscope.tensors.interrupts import SignalSafeContext, signal_safe_contextmanager
from hookscope.tensors.nested import TensorPath
from hookscope.tensors.threads import RecordingThreads, SharedSetting, fork_safe_lock

# The stance of the compiler is one of the whole process, and so is the counter that gives hooks
# their ids; a tensor gets its dict of hooks with the first one. Threads take turns at them.
_eager = SharedSetting(lambda: torch.compiler.set_stance("force_eager"))
_registering = fork_safe_lock()


@signal_safe_contextmanager
def without_compilation(model: nn.Module) -> Iterator[bool]:
    """Run compiled modules of ``model`` as they were written; gives whether there are any."""
    compiled = any(map(_is_compiled, model.modules()))
    if compiled:
        _eager.acquire()
    try:
        yield compiled
    finally:
        if compiled:
            _eager.release()


class Hook:
    """A function that is called as a hook, for the calls that belong to a recording.

    For a call by another thread it returns None, which changes nothing. It takes whatever comes:
    PyTorch reads from a second dict whether a hook wants keyword arguments, and in a call that is
    under way as the hook is taken off it may find the hook and not that entry.
    """

    __slots__ = ("_elsewhere", "_function", "_module", "_threads")

    def __init__(
        self,
        function: Callable[..., Any],
        threads: RecordingThreads,
        elsewhere: set[nn.Module],
        module: nn.Module | None = None,
    ) -> None:
        self._function = function
        self._threads = threads
        self._elsewhere = elsewhere
        self._module = module

    def __call__(self, *args: Any) -> Any:
        """Call the function, or do nothing."""
        if self._threads.includes_current_thread():
            return as_hook(self._function, *args)
        if self._module is not None:
            self._elsewhere.add(self._module)
        return None


class HookSet(SignalSafeContext["HookSet"]):
    """Hooks in and around a model, which the end of a ``with`` block takes off, however it ends.

    They are called for what the thread that entered the block does; see
    ``hookscope.tensors.threads``. A copy or a pickle of the model that is made within the block is
    one without them. Compiled code calls no hook: within the block compiled modules run as they
    were written.

    Args:
        model: the model that is going to run.

    Attributes:
        called_elsewhere: modules with a hook that other threads have called.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.threads = RecordingThreads()
        self.called_elsewhere: set[nn.Module] = set()
        self.stands_in_for_compiled = False
        self._handles: list[RemovableHandle] = []
        self._left_out: dict[int, tuple[HookDict, ...]] = {}

    def _enter(self) -> HookSet:
        self.stands_in_for_compiled = any(map(_is_compiled, self.model.modules()))
        if self.stands_in_for_compiled:
            _eager.acquire()
        self.threads.open()
        return self

    def _leave(self, *error: object) -> None:
        with _registering:
            while self._handles:
                self._handles.pop().remove()
            while self._left_out:
                _keep_in_copies(*self._left_out.popitem()[1])
        self.threads.close()
        if self.stands_in_for_compiled:
            _eager.release()
            self.stands_in_for_compiled = False

    @contextmanager
    def attaching(self) -> Iterator[HookSet]:
        """Enter, for a block that adds hooks; if that fails, none of them stays.

        For whoever enters and leaves apart from each other; ``__exit__`` still is the caller's.
        """
        try:
            yield self.__enter__()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def before(
        self, module: nn.Module, function: Callable[..., Any], *, first: bool = False
    ) -> None:
        """Call ``function(module, args, kwargs)`` before the module; it may return both anew.

        With ``first`` it is called before all other hooks that are there now.
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
    ) -> None:
        """Call ``function(module, args, kwargs, output)`` after the module; it may return another.

        With ``always`` it is called after a failure too, with None for the output.
        """
        with _registering:
            self._handles.append(
                module.register_forward_hook(
                    self._hook(function, module), with_kwargs=True, always_call=always
                )
            )
            self._leave_out_of_copies(
                module._forward_hooks,
                module._forward_hooks_with_kwargs,
                module._forward_hooks_always_called,
            )

    def listen(self, tensor: Tensor, function: Callable[[Tensor | None], Any]) -> None:
        """Call ``function`` with the gradient of ``tensor``; what it returns flows on instead."""
        # A subclass does not see it, and a parameter that has no shape yet does not refuse it.
        with _registering, torch._C.DisableTorchFunctionSubclass():
            self._handles.append(tensor.register_hook(self._hook(function)))

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
        """Call the functions with ``(owner, name, new)`` when a module gets one or a parameter.

        PyTorch calls them for every module of the process, so they have to look at the owner.
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

    def _leave_out_of_copies(self, hooks: HookDict, *marks: HookDict) -> None:
        """Leave our entries out of copies and pickles of a module's dict of hooks, and of others.

        ``marks`` are the dicts that say of each hook how it is called. ``copy`` and ``pickle`` ask
        an object itself for its ``__reduce__`` before its class.
        """
        self._left_out[id(hooks)] = (hooks, *marks)
        if "__reduce__" not in vars(hooks):  # another recording may have put it there
            for members in (hooks, *marks):
                # Weak, or each dict would hold itself.
                reduced = partial(_without_ours, weakref.ref(members), weakref.ref(hooks))
                members.__reduce__ = reduced  # type: ignore[method-assign]


HookDict = dict[int, Any]  # an OrderedDict, which can have attributes


def _without_ours(
    members: weakref.ref[HookDict], hooks: weakref.ref[HookDict]
) -> tuple[type, tuple[()], None, None, Iterator[tuple[int, Any]]]:
    ours: Mapping[int, Any] = hooks() or {}
    items = [
        (number, value)
        for number, value in (members() or {}).items()
        if not isinstance(ours.get(number), Hook)
    ]
    return OrderedDict, (), None, None, iter(items)


def _keep_in_copies(hooks: HookDict, *marks: HookDict) -> None:
    """Let the dicts be copied as a whole again, once none of our hooks is left."""
    if not any(isinstance(hook, Hook) for hook in hooks.values()):
        for members in (hooks, *marks):
            vars(members).pop("__reduce__", None)


class _Depth(threading.local):
    hooks = 0


_depth = _Depth()


def as_hook(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as hooks are: what it computes is not the model's doing."""
    _depth.hooks += 1
    try:
        return function(*args, **kwargs)
    finally:
        _depth.hooks -= 1


class FunctionMode(SignalSafeContext[None]):
    """A function mode of PyTorch's in force; afterwards its stack of modes is as deep as before.

    PyTorch takes a mode off its stack while the mode handles a call. An interrupt may keep it from
    putting the mode back, so that there is nothing to take off at the end.
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._depth = 0

    def _enter(self) -> None:
        self._depth = _len_torch_function_stack()
        _push_mode(self._mode)

    def _leave(self, *error: object) -> None:
        while _len_torch_function_stack() > self._depth:
            _pop_mode()


def hook_depth() -> int:
    """How many functions are running on this thread, one within the other, ``as_hook``."""
    return _depth.hooks


def disable_module_fast_path(module: nn.Module) -> None:
    """Register a hook that does nothing, and stays.

    PyTorch's transformer layers skip their children's ``forward`` unless one of them has a hook.
    """
    module.register_forward_hook(_nothing)


def _nothing(*_: object) -> None:
    pass


def inside_backward() -> bool:
    """Whether a backward pass is under way: a module that runs now is being run again for it."""
    return backward_pass_id() != -1


def backward_pass_id() -> int:
    """The number of the backward pass that is under way on this thread; -1 outside any."""
    return torch._C._current_graph_task_id()


def what_of(kind: str, path: TensorPath) -> str:
    """Name a tensor in the output or input of a call: ``output.1.0``, ``input.mask``."""
    # An input's path begins with 0 for positional and 1 for keyword arguments.
    return ".".join((kind, *(path[1:] if kind == INPUT else path)))


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
