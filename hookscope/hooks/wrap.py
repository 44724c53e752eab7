"""A module with functions of the user around its ``forward``: a hook that is part of the model."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

from torch import nn

from hookscope.errors import RequestError
from hookscope.hooks.hook_set import disable_module_fast_path
from hookscope.sources.live import as_hookable, check_model
from hookscope.sources.user_code import function_name
from hookscope.tensors.grad_mode import BackwardHookPair, Grads
from hookscope.tensors.nested import outline

Function = Callable[..., Any]

# The additional attributes of a wrapped module: its functions, the innermost first, and the forward
# that was set on the module itself, if any.
_AROUND, _FORWARD = "_hookscope_around", "_hookscope_forward"


@dataclass(frozen=True)
class WrapFunctions:
    """Functions around the forward of a module."""

    before: Function | None
    after: Function | None
    backward: Function | None


def wrap(
    module: nn.Module,
    before: Function | None = None,
    after: Function | None = None,
    backward: Function | None = None,
) -> nn.Module:
    """Return a copy of ``module`` that calls your functions around its ``forward``.

    The copy shares the parameters, buffers and children of the module, and its class is a subclass
    of the module's class. Names, ``state_dict`` keys, attributes and ``isinstance`` are as before.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> net[1] = hookscope.wrap(net[1], after=lambda module, input, output: output * 0.5)
        >>> list(net.state_dict()), type(net[1]).__name__
        (['0.weight', '0.bias'], 'ReLU')
    """
    check_model(module)
    for name, function in (("before", before), ("after", after), ("backward", backward)):
        if function is not None and not callable(function):
            raise RequestError(f"{name} must be a function or None, not {type(function).__name__}.")
    inner = as_hookable(module)
    made = inner.__new__(type(inner))  # not copy.copy, which parametrized modules reject
    members = vars(made)
    members.update(vars(inner))
    for name in [name for name, value in members.items() if isinstance(value, dict)]:
        members[name] = copy.copy(members[name])  # a change of one must not affect the other
    if _AROUND not in members:
        members[_FORWARD] = members.pop("forward", None)
        made.__class__ = _class_of(type(made))  # type: ignore[arg-type] # a class has a hash
        disable_module_fast_path(made)
    members[_AROUND] = (*members.get(_AROUND, ()), WrapFunctions(before, after, backward))
    return made


@cache  # so that two wrapped modules of one class are of one class again
def _class_of(base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``base`` of the same name that runs the functions around its forward."""

    @wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return _run(base, self, vars(self)[_AROUND], args, kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        parts: tuple[Any, ...] = tuple(base.__reduce_ex__(self, protocol))
        how, what, *rest = parts
        if how is copyreg.__newobj__:  # type: ignore[attr-defined] # missing in typeshed
            how, what = _blank, (base,)
        return how, what, *rest

    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": base.__module__}
    made = type(base.__name__, (base,), {**members, "__doc__": base.__doc__})
    made.__qualname__ = base.__qualname__
    return made


def _blank(base: type[nn.Module]) -> nn.Module:
    kind = _class_of(base)  # type: ignore[arg-type] # a class has a hash
    return kind.__new__(kind)


def _run(
    base: type[nn.Module],
    module: nn.Module,
    around: tuple[WrapFunctions, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not around:
        own = vars(module)[_FORWARD]
        return base.forward(module, *args, **kwargs) if own is None else own(*args, **kwargs)
    *inner, outer = around
    if outer.before is not None:
        made = outer.before(module, args)
        if made is not None:
            args = _same(outer.before, args, made if isinstance(made, tuple) else (made,))
    # Around ``after`` too, as PyTorch runs forward hooks inside full backward hooks.
    pair = None if outer.backward is None else _backward_pair(module, outer.backward)
    args = args if pair is None else pair.enter(args)
    output = _run(base, module, tuple(inner), args, kwargs)
    if outer.after is not None:
        made = outer.after(module, args, output)
        output = output if made is None else _same(outer.after, output, made)
    return output if pair is None else pair.leave(output)


def _backward_pair(module: nn.Module, function: Function) -> BackwardHookPair:
    """Two gates that pass the gradients at the module's outputs and inputs to ``function``."""

    def on_grads(grad_input: Grads, grad_output: Grads) -> Grads:
        result = function(module, grad_input, grad_output)
        if result is None:
            return grad_input
        new: Grads = result if isinstance(result, tuple) else (result,)
        _same(function, grad_input, new)
        return new

    return BackwardHookPair(on_grads)


def _same(function: Function, old: Any, new: Any) -> Any:
    if outline(old) != outline(new):
        raise RequestError(
            f"{function_name(function)} returned {outline(new)} in place of {outline(old)}.",
            "Return a value of the same structure and shapes, or None to leave it as it is.",
        )
    return new
