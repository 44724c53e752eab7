"""One run of a language model that keeps what its blocks return, and finds its norm and head.

The blocks of a transformer add to the *residual stream*: each returns it with its part added. After
the last block comes a norm and the *head*, the linear layer that makes logits of it. Both are found
by their tensors: the head is the module that returns the logits, and the norm is the module that
returns what the head gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookscope.errors import LayerError, RequestError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.losses.loss import find_logits
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import Layer, layers_of, submodule
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.nested import walk

_RECENT = 12  # calls that may lie between the norm and the output: the head and the modules around
NO_NORM = "none"


@dataclass(frozen=True)
class ResidualStream:
    """What a run gave.

    Attributes:
        values: the residual stream by layer, in execution order: batch, position, width.
        norm: the final norm; None if there is none.
        head: the unembedding.
        final: the tensor that the head was called with.
        logits: the logits of the model's output: batch, position, token, or batch, class.
    """

    values: dict[str, Tensor]
    norm: Layer | None
    head: Layer
    final: Tensor
    logits: Tensor


@dataclass(frozen=True)
class _Returned:
    """A call that has returned: its module, its first argument and its first tensor."""

    layer: Layer
    argument: Tensor | None
    value: Tensor


class StreamRecorder(CallSubscriber):
    """Stores the outputs of layers, and the last calls before the end of the run.

    Args:
        layers: whose outputs are stored.
        first: whose input is stored too; None for none.
        outer: modules outside the blocks, one of which is the norm and one the head.

    Attributes:
        values: the stored tensors by layer.
        recent: the last calls of ``outer``, the latest last.
    """

    def __init__(
        self, layers: Iterable[Layer], firsts: Iterable[Layer], outer: Iterable[Layer]
    ) -> None:
        self._stored = {layer.module for layer in layers}
        self._firsts = {layer.module for layer in firsts}
        self._outer = {layer.module for layer in outer}
        self.values: dict[str, Tensor] = {}
        self.recent: deque[_Returned] = deque(maxlen=_RECENT)

    def before_call(self, call: ModuleCall) -> None:
        """Store what goes into a first block."""
        if call.layer.module in self._firsts and call.number == 1:
            argument = _first_tensor((call.args, call.kwargs))
            if argument is not None:
                self.values[f"{call.layer.name}/input"] = argument.detach().clone()

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Store what a layer returned."""
        value = None if call.failed else _first_tensor(call.output)
        if value is None:
            return
        if call.layer.module in self._stored:
            self.values[call.layer.name] = value.detach().clone()
        if call.layer.module in self._outer:
            argument = _first_tensor((call.args, call.kwargs))
            self.recent.append(_Returned(call.layer, argument, value))


def record_stream(
    prepared: Prepared, layers: Iterable[Layer], norm: str | None, head: str | None
) -> ResidualStream:
    """Run the model once, and return its residual stream.

    Args:
        prepared: the model and its input.
        layers: whose outputs are taken; none for the blocks of the model, and what goes into the
            first one.
        norm: name of the final norm; ``none`` if there is none; None to find it.
        head: name of the unembedding; None to find it.

    Raises:
        LayerError: there is no such module.
        RequestError: the blocks or the head cannot be found.
        ForwardError: the model raised.
    """
    module = prepared.module
    chosen = tuple(layers)
    stacks = _stacks(module)
    blocks = [layer for stack in stacks for layer in stack]
    stored = chosen or blocks
    inside = {inner for layer in blocks for inner in layer.module.modules()}
    inside -= {layer.module for layer in blocks}
    named = [_named(prepared, name) for name in (norm, head) if name not in (None, NO_NORM)]
    outer = [layer for layer in layers_of(module) if layer.module not in inside]
    recorder = StreamRecorder(stored, [stack[0] for stack in stacks] if not chosen else (), outer)
    watched = {layer.name: layer for layer in (*stored, *blocks, *outer, *named)}
    registry = CallRegistry(module)
    guard = preserve_model_state(module, train=prepared.train, seed=prepared.seed)
    edits = forward_interventions(prepared.interventions, module, prepared.seed)
    with guard, edits, registry.subscribed(recorder, tuple(watched.values())):
        logits = _logits_of(prepared, forward(prepared))
        recent = list(recorder.recent)
        found_head = _find_head(prepared, recent, logits, head)
        found_norm = _find_norm(recent, found_head, (*stored, *blocks), norm, prepared)
        final = found_head.argument
        assert final is not None
    values = recorder.values
    if not chosen:
        values = _of_last_stack(values, stacks, final, prepared)
    return ResidualStream(
        values, found_norm, found_head.layer, final.detach().clone(), logits.detach()
    )


def _first_tensor(value: Any) -> Tensor | None:
    return next((tensor for _, tensor in walk(value) if tensor.is_floating_point()), None)


def _stacks(module: nn.Module) -> list[list[Layer]]:
    """The lists of at least two modules of one class each; a stack inside another is left out."""
    layers = layers_of(module)
    by_module = {layer.module: layer for layer in layers}
    stacks: list[list[Layer]] = []
    covered: set[nn.Module] = set()
    for layer in layers:
        children = list(layer.module.children())
        same = len(children) > 1 and len({type(child) for child in children}) == 1
        is_block = same and any(True for _ in children[0].children())
        if layer.module in covered or not is_block:
            continue
        covered.update(inner for child in children for inner in child.modules())
        stacks.append([by_module[child] for child in children if child in by_module])
    return [stack for stack in stacks if stack]


def _of_last_stack(
    values: dict[str, Tensor], stacks: list[list[Layer]], final: Tensor, prepared: Prepared
) -> dict[str, Tensor]:
    """The values of the last stack whose width is that of the head's input."""
    for stack in reversed(stacks):
        names = [f"{stack[0].name}/input", *(layer.name for layer in stack)]
        found = {name: values[name] for name in names if name in values}
        last = found.get(stack[-1].name)
        if last is not None and last.shape[-1] == final.shape[-1]:
            return found
    raise RequestError(
        f"{prepared.loaded.spec} has no stack of blocks that leads to the head.",
        "Name the layers that return the residual stream, such as --layer 'model.layers.*'.",
    )


def _logits_of(prepared: Prepared, output: Any) -> Tensor:
    logits = find_logits(output)[1]
    if logits is None or not logits.is_floating_point() or logits.ndim < 2:
        raise RequestError(
            f"{prepared.loaded.spec} does not return logits, so its layers predict no token.",
            "Choose a model with a language modelling head, such as ...ForCausalLM.",
        )
    return logits


def _named(prepared: Prepared, name: str | None) -> Layer:
    assert name is not None
    module = submodule(prepared.module, name)
    if module is None:
        near = did_you_mean(name, [layer.name for layer in layers_of(prepared.module)])
        raise LayerError(f"{prepared.loaded.spec} has no module {name!r}.", near)
    return Layer(name, module)


def _find_head(
    prepared: Prepared, recent: list[_Returned], logits: Tensor, name: str | None
) -> _Returned:
    """The call of the head: that of the module named, else the innermost that returned logits."""
    if name is None:
        calls = (call for call in recent if call.argument is not None)
        made = (call for call in calls if _is_same(call.value, logits))
        call = next(made, None) or _output_embeddings(prepared.module, recent)
    else:
        head = _named(prepared, name).module
        call = next((call for call in recent if call.layer.module is head), None)
    if call is None or call.argument is None:
        what = "The module that makes the logits" if name is None else f"The head {name!r}"
        raise RequestError(
            f"{what} was not found among the last calls of {prepared.loaded.spec}.",
            "Name it with --head, such as --head lm_head.",
        )
    return call


def _output_embeddings(module: nn.Module, recent: list[_Returned]) -> _Returned | None:
    """The call of what transformers calls the output embeddings, whose output is changed later."""
    getter = getattr(module, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    return next((call for call in recent if call.layer.module is head), None)


def _find_norm(
    recent: list[_Returned],
    head: _Returned,
    blocks: Iterable[Layer],
    name: str | None,
    prepared: Prepared,
) -> Layer | None:
    """The norm: the module named, else the innermost that returned what the head got."""
    if name == NO_NORM:
        return None
    if name is not None:
        return _named(prepared, name)
    assert head.argument is not None
    stack = {layer.module for layer in blocks}
    for call in recent:
        if call is not head and _shares_storage(call.value, head.argument):
            is_outer = any(inner in stack for inner in call.layer.module.modules())
            return None if is_outer else call.layer
    return None


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (_shares_storage(a, b) and a.shape == b.shape and a.stride() == b.stride())


def _shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
