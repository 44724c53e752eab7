"""Hooks of the whole process: on every optimizer, and on functions of PyTorch without hooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from traceback import walk_stack
from types import FunctionType
from typing import Any, Protocol, cast

from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hookscope.files.frame_variables import variables_of
from hookscope.hooks.torch_state import DEEPER_CALLS

OnOptimizer = Callable[[Optimizer], None]
OnModule = Callable[[nn.Module], None]
Undo = Callable[[], None]

# ``warnings.warn`` counts the frames up to the line that it names, without those of a file with
# these words in its name. So it names the same line of the script as without hookscope. The name
# does not begin like that of Python's own file, whose functions torch.compile does not compile.
_NOT_COUNTED = "<hookscope importlib._bootstrap>"


def leave_out_this_frame(error: BaseException) -> None:
    """Take the calling frame out of the traceback of an error that it has just caught."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def around_every_step(before: OnOptimizer, after: OnOptimizer) -> list[Undo]:
    """Call ``before`` and ``after`` around the steps of all optimizers; return how to end it.

    If the ``step`` of an optimizer calls its base class's, they are called around the outer.
    """

    def outermost(function: OnOptimizer) -> Callable[[Optimizer, Any, Any], None]:
        def call(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if _running_steps(optimizer) < 2:
                function(optimizer)

        return call

    handles = (
        register_optimizer_step_pre_hook(outermost(before)),
        register_optimizer_step_post_hook(outermost(after)),
    )
    return [handle.remove for handle in handles]


# The code around each ``step`` of an optimizer that calls its hooks.
_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__


def _running_steps(optimizer: Optimizer) -> int:
    """How many calls of ``step`` of an optimizer this thread is in."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    return sum(x.f_code is _STEP and variables_of(x).get("self") is optimizer for x in frames)


def around_function(
    owner: Any,
    name: str,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Undo:
    """Call ``before(*args, **kwargs)`` and ``after(result, *args, **kwargs)`` around a function.

    It is an attribute of a module or a class. Tracebacks leave out the frame, and warnings name
    the same line as without it.
    """
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        if after is not None:
            after(result, *args, **kwargs)
        return result

    return _replace(owner, name, call)


def _replace(owner: Any, name: str, call: Callable[..., Any]) -> Undo:
    """Put ``call`` in the place of a function, as a frame that warnings do not count."""
    original = getattr(owner, name)
    function = cast(FunctionType, call)
    function.__code__ = function.__code__.replace(co_filename=_NOT_COUNTED)
    setattr(owner, name, call)

    def restore() -> None:
        if getattr(owner, name) is call:  # else other code has replaced it since
            setattr(owner, name, original)

    return restore


class OuterCallObserver(Protocol):
    """What learns of the calls of modules that are outside the call of another module."""

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Act before the call; the result is passed to the method that ends it."""

    def end(self, call: Any, output: Any) -> None:
        """Act when the call has returned."""

    def fail(self, call: Any, error: BaseException) -> None:
        """Act when the call has raised an exception."""


class _InCall(threading.local):
    now = False


def around_outer_calls(observer: OuterCallObserver) -> Undo:
    """Pass each call of a module that no other module makes to ``observer``; return how to end it.

    ``nn.Module.__call__`` is replaced: a hook on all modules would make each call of one several
    times slower, and compiled code would not be compiled with it. In code that is being compiled
    the replacement does nothing, and nothing of it is compiled.
    """
    original = nn.Module.__call__
    inside = _InCall()

    @wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or inside.now:
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
        inside.now = True
        try:
            observed = observer.begin(self, args, kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                observer.fail(observed, error)
                raise
            observer.end(observed, result)
            return result
        finally:
            inside.now = False

    restore = _replace(nn.Module, "__call__", call)
    DEEPER_CALLS.acquire()

    def undo() -> None:
        restore()
        DEEPER_CALLS.release()

    return undo


def on_new_parameters(function: OnModule) -> list[Undo]:
    """Call ``function`` with modules that get a parameter or are a copy; return how to end it."""
    handle = register_module_parameter_registration_hook(lambda module, *_: function(module))

    def on_copy(_: None, module: nn.Module, *__: Any) -> None:
        function(module)

    return [handle.remove, around_function(nn.Module, "__setstate__", after=on_copy)]


def before_any_call(function: OnModule) -> Undo:
    """Call ``function`` with each module before it is called; return how to end it."""
    handle = register_module_forward_pre_hook(lambda module, _: function(module))
    return handle.remove
