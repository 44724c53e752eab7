"""Finds the head of a language model, and the norm before it, among the last calls of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hookscope.errors import LayerError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.layers import Layer, layers_of, submodule
from hookscope.specs.patterns import ROOT

NO_NORM = "none"


@dataclass(frozen=True)
class ReturnedCall:
    """A call that has returned: its module, its first argument and its first tensor."""

    layer: Layer
    argument: Tensor | None
    value: Tensor


@dataclass(frozen=True)
class WayToLogits:
    """The calls from the end of a stack of blocks to the logits."""

    stack: Sequence[Layer]
    norm: ReturnedCall | None
    head: ReturnedCall


def named_layer(prepared: Prepared, name: str | None) -> Layer:
    """Return the layer of this name; raise LayerError if there is none."""
    assert name is not None
    module = submodule(prepared.module, name)
    if module is None:
        near = did_you_mean(name, [layer.name for layer in layers_of(prepared.module)])
        hint = near or "'hookscope tree MODEL' lists the modules."
        raise LayerError(f"{prepared.loaded.spec} has no module {name!r}.", hint)
    return Layer(name, module)


def find_way(
    prepared: Prepared,
    recorded: Iterable[ReturnedCall],
    ends_of: Mapping[str, Tensor],
    stacks: Sequence[Sequence[Layer]],
    logits: Tensor,
    norm: str | None,
    head: str | None,
) -> tuple[WayToLogits, bool]:
    """Return the norm and the head, and whether they are a chain from the last block to the logits.

    ``recorded`` are the last calls in the order in which they returned; ``ends_of`` has what the
    last block of each stack returned, by its name.
    """
    # The one that ran last comes first, and a single layer after all stacks.
    order = {name: n for n, name in enumerate(ends_of)}
    ran = [stack for stack in stacks if stack[-1].name in order]
    ran.sort(key=lambda stack: (len(stack) > 1, order[stack[-1].name]), reverse=True)
    ends = [(stack, ends_of[stack[-1].name]) for stack in ran]
    recent = [call for call in recorded if call.layer.name != ROOT]
    heads = _heads(prepared, recent, logits, head)
    for call in heads:
        for stack, end in ends:
            for way in _chains(recent, call, stack, end, norm):
                return way, _is_same(call.value, logits)
    if not heads:
        _raise_unknown_head(prepared, recent, head)
    call = heads[0]
    assert call.argument is not None
    width = call.argument.shape[-1]
    fitting = [stack for stack, end in ends if end.shape[-1] == width]
    if not fitting:
        raise RequestError(
            f"{prepared.loaded.spec} has no stack of blocks that leads to the head.",
            "Choose a language model, such as hf:FOLDER, or name another part with --head.",
        )
    return WayToLogits(fitting[0], _nearest_norm(prepared, recent, call, norm), call), False


def _heads(
    prepared: Prepared, recent: Sequence[ReturnedCall], logits: Tensor, name: str | None
) -> list[ReturnedCall]:
    """The calls that may be the head's, because they returned the logits; innermost first."""
    calls = [call for call in recent if call.argument is not None]
    if name is not None:
        head = named_layer(prepared, name).module
        return [call for call in calls if call.layer.module is head]
    made = [call for call in calls if _is_same(call.value, logits)]
    if not made:  # a model of transformers that changes the logits after its head
        getter = getattr(prepared.module, "get_output_embeddings", None)
        embeddings = getter() if callable(getter) else None
        made = [call for call in calls if call.layer.module is embeddings]
    return made


def _chains(
    recent: Sequence[ReturnedCall],
    head: ReturnedCall,
    stack: Sequence[Layer],
    end: Tensor,
    norm: str | None,
) -> Iterator[WayToLogits]:
    """The ways from the end of a stack to the head, without a norm and with one."""
    assert head.argument is not None
    if norm in (None, NO_NORM) and _shares_storage(head.argument, end):
        yield WayToLogits(stack, None, head)
    if norm == NO_NORM:
        return
    for call in recent:
        is_named = norm is None or call.layer.name == norm
        if is_named and call is not head and call.argument is not None:
            leads = _shares_storage(call.value, head.argument)
            if leads and _shares_storage(call.argument, end):
                yield WayToLogits(stack, call, head)


def _nearest_norm(
    prepared: Prepared, recent: Sequence[ReturnedCall], head: ReturnedCall, name: str | None
) -> ReturnedCall | None:
    """The call of the norm named; else the innermost leaf that returned what the head got."""
    assert head.argument is not None
    if name == NO_NORM:
        return None
    if name is not None:
        layer = named_layer(prepared, name)
        return ReturnedCall(layer, None, head.argument)
    calls = (call for call in recent if call is not head and call.layer.leaf)
    return next((call for call in calls if _shares_storage(call.value, head.argument)), None)


def _raise_unknown_head(
    prepared: Prepared, recent: Sequence[ReturnedCall], name: str | None
) -> None:
    what = "The module that makes the logits" if name is None else f"The head {name!r}"
    last = [call.layer.name for call in recent if call.layer.leaf][-3:]
    raise RequestError(
        f"{what} was not found among the last calls of {prepared.loaded.spec}.",
        f"Name it with --head. The last modules that ran are {', '.join(last)}.",
    )


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (_shares_storage(a, b) and a.shape == b.shape and a.stride() == b.stride())


def _shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
