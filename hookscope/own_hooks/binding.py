"""From what the user calls hooks to functions, each bound to its layers and its moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hookscope.choices import (
    BACKWARD,
    BACKWARD_PRE,
    FORWARD,
    FORWARD_PRE,
    ON_TENSOR,
    STEP_HOOKS,
    STEP_POST,
    STEP_PRE,
)
from hookscope.errors import RequestError
from hookscope.modules import ROOT, Layer
from hookscope.own_hooks.words import parse_hook, settle_kinds
from hookscope.select import select
from hookscope.sources.functions import file_of, load_functions, name_of, with_arguments
from hookscope.spec import FunctionWord

Function = Callable[..., Any]
Hooks = str | Function | Mapping[str, "str | Function"] | Iterable["str | Function"]

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
class OwnHook:
    """A user's function, when it is called, and at which layers.

    ``label`` is the word it was given by, or the function's name. ``file`` is where its code is.
    """

    label: str
    kind: str
    function: Function
    layers: tuple[Layer, ...]
    file: str


def bind(
    hooks: Hooks,
    kinds: str | Iterable[str],
    arguments: Mapping[str, Any],
    *,
    model: nn.Module,
    layers: tuple[Layer, ...],
    word: str,
    verb: str,
) -> tuple[OwnHook, ...]:
    """Find the functions that ``hooks`` names, and the layers that each one goes to.

    Args:
        hooks: words (``[GLOB=]FILE.py:FUNCTION``), functions, or a dict from globs to either.
        kinds: one kind for all, or one for each.
        arguments: further arguments, for each function that has a parameter of the name.
        model: the model that runs.
        layers: where a hook goes that has no glob of its own.
        word: what the user called the model.
        verb: what runs it: ``capture``, ``grads`` or ``step``.

    Raises:
        RequestError, ModelError, LayerError: a word, file, function, argument or glob is wrong.
    """
    wanted = [_parsed(glob, one) for glob, one in _pairs(hooks)]
    kinds = settle_kinds([kinds] if isinstance(kinds, str) else list(kinds), len(wanted), verb=verb)
    words = [one for _, one in wanted if isinstance(one, FunctionWord)]
    found = iter(load_functions(words))
    functions = [next(found) if isinstance(one, FunctionWord) else one for _, one in wanted]
    if arguments and not functions:
        raise RequestError("An argument for a hook is given and no hook.", "Add --hook.")
    bound = with_arguments(functions, arguments, [_CALLED_WITH[kind] for kind in kinds])
    made = []
    for (glob, one), kind, function in zip(wanted, kinds, bound, strict=True):
        if kind in STEP_HOOKS:
            if glob is not None:
                raise RequestError(
                    f"A hook of kind {kind!r} is bound to no layer, and {glob!r} names some.",
                    "Give it without a glob: it runs once, with the optimizer.",
                )
            chosen: tuple[Layer, ...] = (Layer(ROOT, model),)
        else:
            chosen = layers if glob is None else select(model, [glob], word=word)
        file = one.home if isinstance(one, FunctionWord) and one.in_file else file_of(function)
        label = one.word if isinstance(one, FunctionWord) else name_of(function)
        made.append(OwnHook(label, kind, function, chosen, file))
    return tuple(made)


def _pairs(hooks: Hooks) -> list[tuple[str | None, Any]]:
    if isinstance(hooks, Mapping):
        return list(hooks.items())
    if isinstance(hooks, str) or callable(hooks):
        return [(None, hooks)]
    return [(None, one) for one in hooks]


def _parsed(glob: str | None, one: Any) -> tuple[str | None, FunctionWord | Function]:
    if isinstance(one, str):
        word = parse_hook(one if glob is None else f"{glob}={one}")
        return word.glob, word.function
    if not callable(one):
        raise RequestError(
            f"{type(one).__name__} is no hook.", "Give a function, or FILE.py:FUNCTION."
        )
    return glob, one


def describe_hooks(hooks: Iterable[OwnHook]) -> list[dict[str, Any]]:
    """The hooks as a file's metadata holds them."""
    return [
        {"hook": hook.label, "kind": hook.kind, "layers": [layer.name for layer in hook.layers]}
        for hook in hooks
    ]
