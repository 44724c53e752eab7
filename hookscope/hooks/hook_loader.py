"""Loading of user hooks from files and functions, and binding them to layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from hookscope.errors import RequestError
from hookscope.hooks.layers import Layer, select
from hookscope.sources.user_code import bind_arguments, function_file, function_name, load_functions
from hookscope.specs.choices import (
    BACKWARD,
    BACKWARD_PRE,
    FORWARD,
    FORWARD_PRE,
    HOOK_KINDS_OF,
    ON_TENSOR,
    STEP_HOOKS,
    STEP_POST,
    STEP_PRE,
)
from hookscope.specs.intervention_spec import Hooks, parse_hook, resolve_hook_kinds
from hookscope.specs.model_spec import FunctionSpec
from hookscope.specs.patterns import ROOT

Function = Callable[..., Any]

_CALLED_WITH = {
    FORWARD: ("module", "input", "output"),
    FORWARD_PRE: ("module", "input"),
    BACKWARD: ("module", "grad_input", "grad_output"),
    BACKWARD_PRE: ("module", "grad_output"),
    ON_TENSOR: ("grad",),
    STEP_PRE: ("optimizer", "args", "kwargs"),
    STEP_POST: ("optimizer", "args", "kwargs"),
}


@dataclass(frozen=True, eq=False)
class UserHook:
    """A user's function, when it is called, and at which layers.

    ``label`` is its spec, or the function's name; ``file`` contains its code. ``glob`` selects its
    layers, if it has layers of its own. ``layers`` is set once it is bound to a model.
    """

    label: str
    kind: str
    function: Function
    file: str
    glob: str | None
    layers: tuple[Layer, ...] = ()


def load_user_hooks(
    hooks: Hooks, kinds: Sequence[str], arguments: Mapping[str, Any], *, verb: str
) -> tuple[UserHook, ...]:
    """Load the functions that ``hooks`` names, without a model. Their files are run."""
    parsed = [_parsed(glob, hook) for glob, hook in _pairs(hooks)]
    has_kinds = bool(kinds)
    kinds = resolve_hook_kinds(kinds, len(parsed), verb=verb)
    for (glob, _), kind in zip(parsed, kinds, strict=True):
        if kind in STEP_HOOKS and glob is not None:
            raise RequestError(
                f"A hook of kind {kind!r} does not run at layers, but {glob!r} selects some.",
                "Remove the glob. The hook runs once, with the optimizer.",
            )
    loaded = iter(load_functions([spec for _, spec in parsed if isinstance(spec, FunctionSpec)]))
    functions = [next(loaded) if isinstance(x, FunctionSpec) else x for _, x in parsed]
    if not has_kinds:
        for function in functions:
            _check_is_forward_hook(function, arguments, verb)
    bound = bind_arguments(functions, arguments, [_CALLED_WITH[kind] for kind in kinds])
    user_hooks = []
    for (glob, spec), kind, function in zip(parsed, kinds, bound, strict=True):
        label, file = function_name(function), function_file(function)
        if isinstance(spec, FunctionSpec):
            label = spec.text
            file = spec.home if spec.in_file else file
        user_hooks.append(UserHook(label, kind, function, file, glob))
    return tuple(user_hooks)


def _check_is_forward_hook(function: Function, arguments: Mapping[str, Any], verb: str) -> None:
    """Raise RequestError if a hook without a kind has the parameters of a gradient hook."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return
    names = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    kind = {3: BACKWARD, 2: BACKWARD_PRE, 1: ON_TENSOR}.get(len(names))
    if kind is None or not any(name.startswith("grad") for name in names):
        return
    add = f"Add --hook-kind {kind}."
    if kind not in HOOK_KINDS_OF[verb]:
        add = f"{verb} runs no backward pass: use hookscope grads with --hook-kind {kind}."
    raise RequestError(
        f"The hook {function_name(function)}({', '.join(names)}) takes gradients, and no"
        " --hook-kind is given.",
        f"{add} The default kind, {FORWARD}, is called with {', '.join(_CALLED_WITH[FORWARD])}.",
    )


def bind_user_hooks(
    hooks: Iterable[UserHook], model: nn.Module, layers: tuple[Layer, ...], model_spec: str
) -> tuple[UserHook, ...]:
    """Bind each hook to its layers in ``model``: those of its glob, else ``layers``."""

    def layers_of_hook(hook: UserHook) -> tuple[Layer, ...]:
        if hook.kind in STEP_HOOKS:
            return (Layer(ROOT, model),)
        return layers if hook.glob is None else select(model, [hook.glob], spec=model_spec)

    return tuple(replace(hook, layers=layers_of_hook(hook)) for hook in hooks)


def _pairs(hooks: Hooks) -> list[tuple[str | None, Any]]:
    if isinstance(hooks, Mapping):
        return list(hooks.items())
    if isinstance(hooks, str) or callable(hooks):
        return [(None, hooks)]
    return [(None, hook) for hook in hooks]


def _parsed(glob: str | None, hook: Any) -> tuple[str | None, FunctionSpec | Function]:
    if isinstance(hook, str):
        spec = parse_hook(hook if glob is None else f"{glob}={hook}")
        return spec.glob, spec.function
    if not callable(hook):
        raise RequestError(
            f"A hook is a function or its spec, not {type(hook).__name__}.",
            "Give a function, or FILE.py:FUNCTION.",
        )
    return glob, hook


def describe_hooks(hooks: Iterable[UserHook]) -> list[dict[str, Any]]:
    """Return the entries of a file's metadata about the hooks."""
    return [
        {"hook": hook.label, "kind": hook.kind, "layers": [layer.name for layer in hook.layers]}
        for hook in hooks
    ]
