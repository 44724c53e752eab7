"""One run of a language model that stores what its blocks return, and finds its norm and head.

Each block returns the *residual stream* with its part added. After the last one comes a norm and
the *head*, which makes the logits. Both are found by their tensors: the norm was called with what
the last block returned, the head with what the norm returned, and the head returned the logits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.forward import forward
from hookscope.execution.language_output import head_logits
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.lens_head import NO_NORM, ReturnedCall, find_way, named_layer
from hookscope.tensors.nested import walk

_RECENT = 24  # calls that may lie between the last block and the output


@dataclass(frozen=True)
class ResidualStream:
    """What a run gave."""

    values: dict[str, Tensor]
    end: Tensor
    norm: Layer | None
    head: Layer
    logits: Tensor
    is_chain: bool


class StreamRecorder(CallSubscriber):
    """Stores the outputs of layers, and the last calls before the end of the run."""

    def __init__(
        self, stored: Iterable[Layer], stacks: Sequence[Sequence[Layer]], outer: Iterable[Layer]
    ) -> None:
        self._stored = {layer.module for layer in stored}
        self._firsts = {stack[0].module for stack in stacks}
        self._lasts = {stack[-1].module for stack in stacks}
        self._outer = {layer.module for layer in outer}
        self.values: dict[str, Tensor] = {}
        self.ends: dict[str, Tensor] = {}
        self.recent: deque[ReturnedCall] = deque(maxlen=_RECENT)

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
        name, module = call.layer.name, call.layer.module
        if module in self._stored:
            self.values[name] = value.detach().clone()
        if module in self._lasts or module in self._stored:
            self.ends.pop(name, None)
            self.ends[name] = value
        if module in self._outer:
            argument = _first_tensor((call.args, call.kwargs))
            self.recent.append(ReturnedCall(call.layer, argument, value))


def record_stream(
    prepared: Prepared, layers: Iterable[Layer], norm: str | None, head: str | None
) -> ResidualStream:
    """Run the model once, and return its residual stream."""
    module, chosen = prepared.module, tuple(layers)
    stacks = block_stacks(module)
    blocks = [layer for stack in stacks for layer in stack]
    inside = {inner for layer in blocks for inner in layer.module.modules()}
    inside -= {layer.module for layer in blocks}
    named = [named_layer(prepared, name) for name in (norm, head) if name not in (None, NO_NORM)]
    outer = [layer for layer in layers_of(module) if layer.module not in inside] + named
    recorder = StreamRecorder(chosen or blocks, stacks, outer)
    watched = {layer.name: layer for layer in (*chosen, *blocks, *outer)}
    edits = forward_interventions(prepared.interventions, module, prepared.seed)
    registry = CallRegistry(module)
    with edits, registry.subscribed(recorder, tuple(watched.values())):
        logits = _logits_of(prepared, forward(prepared))
    # In a model without such stacks, the layers that are chosen are taken for blocks.
    ways = [*stacks, *([layer] for layer in chosen)]
    way, is_chain = find_way(prepared, recorder.recent, recorder.ends, ways, logits, norm, head)
    names = [layer.name for layer in chosen]
    if not chosen:
        names = [f"{way.stack[0].name}/input", *(layer.name for layer in way.stack)]
    values = {name: value for name, value in recorder.values.items() if name in names}
    return ResidualStream(
        values,
        recorder.ends[way.stack[-1].name].detach(),
        way.norm.layer if way.norm else None,
        way.head.layer,
        logits.detach(),
        is_chain,
    )


def _first_tensor(value: Any) -> Tensor | None:
    tensors = (tensor for _, tensor in walk(value))
    return next((t for t in tensors if t.is_floating_point() and t.ndim > 1), None)


def block_stacks(module: nn.Module) -> list[list[Layer]]:
    """Return the lists of modules of one class each; a stack inside another is left out."""
    layers = layers_of(module)
    by_module = {layer.module: layer for layer in layers}
    stacks: list[list[Layer]] = []
    covered: set[nn.Module] = set()
    for layer in layers:
        children = list(layer.module.children())
        several = len(children) > (0 if isinstance(layer.module, nn.ModuleList) else 1)
        same = several and len({type(child) for child in children}) == 1
        if layer.module in covered or not same or not list(children[0].children()):
            continue
        covered.update(inner for child in children for inner in child.modules())
        stacks.append([by_module[child] for child in children if child in by_module])
    return [stack for stack in stacks if stack]


def _logits_of(prepared: Prepared, output: Any) -> Tensor:
    logits = head_logits(output)
    if logits is None or logits.ndim < 2:
        raise RequestError(
            f"{prepared.loaded.spec} does not return logits, so its layers predict no token.",
            "Choose a model with a language modelling head, such as ...ForCausalLM.",
        )
    return logits
