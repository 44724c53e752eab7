"""The only file that registers hooks: on modules, tensors and optimizers, and takes them off again.

What the hooks do is the business of whoever attaches them: ``recorder``, ``edits``, ``own_hooks``,
``tracing``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope.kinds import INPUT
from hookscope.tensors import Path


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[bool]:
    """Run compiled modules of ``model`` as they were written; gives whether there are any."""
    compiled = any(map(_is_compiled, model.modules()))
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        yield compiled


class HookSet:
    """Hooks in and around a model, which the end of a ``with`` block takes off, however it ends.

    Compiled code calls no hook: within the block compiled modules run as they were written.

    Args:
        model: the model that is going to run.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._handles: list[RemovableHandle] = []
        self._stance = ExitStack()
        self.stands_in_for_compiled = False

    def __enter__(self) -> HookSet:
        self.stands_in_for_compiled = self._stance.enter_context(uncompiled(self.model))
        return self

    def __exit__(self, *error: object) -> None:
        interrupted: KeyboardInterrupt | None = None
        while self._handles:
            try:
                self._handles[-1].remove()
                self._handles.pop()
            except KeyboardInterrupt as stop:  # not before all of them are off
                interrupted = stop
        self._stance.close()
        if interrupted is not None:
            raise interrupted

    @contextmanager
    def attaching(self) -> Iterator[HookSet]:
        """Enter, for a block that adds hooks; if that fails or is interrupted, none of them stays.

        For whoever enters and leaves apart from each other; ``__exit__`` still is the caller's.
        """
        try:
            yield self.__enter__()
        except BaseException:
            self.__exit__()
            raise

    def before(
        self, module: nn.Module, function: Callable[..., Any], *, first: bool = False
    ) -> None:
        """Call ``function(module, args, kwargs)`` before the module; it may return both anew.

        With ``first`` it is called before all other hooks that are there now.
        """
        hook = partial(as_hook, function)
        handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first)
        self._handles.append(handle)

    def after(
        self, module: nn.Module, function: Callable[..., Any], *, always: bool = False
    ) -> None:
        """Call ``function(module, args, kwargs, output)`` after the module; it may return another.

        With ``always`` it is called after a failure too, with None for the output.
        """
        hook = partial(as_hook, function)
        handle = module.register_forward_hook(hook, with_kwargs=True, always_call=always)
        self._handles.append(handle)

    def listen(self, tensor: Tensor, function: Callable[[Tensor | None], Any]) -> None:
        """Call ``function`` with the gradient of ``tensor``; what it returns flows on instead."""
        self._handles.append(tensor.register_hook(partial(as_hook, function)))

    def around_step(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> None:
        """Call ``before`` and ``after`` with ``(optimizer, args, kwargs)`` around each step."""
        if before is not None:
            self._handles.append(optimizer.register_step_pre_hook(before))
        if after is not None:
            self._handles.append(optimizer.register_step_post_hook(after))


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


def hook_depth() -> int:
    """How many functions are running on this thread, one within the other, ``as_hook``."""
    return _depth.hooks


def show_to_fast_paths(module: nn.Module) -> None:
    """Register a hook that does nothing, and stays.

    PyTorch's transformer layers skip their children's ``forward`` unless one of them has a hook.
    """
    module.register_forward_hook(_nothing)


def _nothing(*_: object) -> None:
    pass


def inside_backward() -> bool:
    """Whether a backward pass is under way: a module that runs now is being run again for it."""
    return torch._C._current_graph_task_id() != -1


def what_of(kind: str, path: Path) -> str:
    """Name a tensor in the output or input of a call: ``output.1.0``, ``input.mask``."""
    # An input's path begins with 0 for positional and 1 for keyword arguments.
    return ".".join((kind, *(path[1:] if kind == INPUT else path)))


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
