"""One run of a language model that stores what its blocks return, and finds its norm and head.

Each block returns the *residual stream* with its part added. After the last one comes a norm and
the *head*, which makes the logits. Both are found by their tensors: the norm was called with what
the last block returned, the head with what the norm returned, and the head returned the logits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookscope.errors import LayerError, RequestError
from hookscope.execution.forward import forward
from hookscope.execution.loss import find_logits
from hookscope.execution.prepare import Prepared
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import Layer, layers_of, submodule
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.specs.patterns import ROOT
from hookscope.tensors.nested import walk

NO_NORM = "none"
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


@dataclass(frozen=True)
class _Returned:
    """A call that has returned: its module, its first argument and its first tensor."""

    layer: Layer
    argument: Tensor | None
    value: Tensor


@dataclass(frozen=True)
class _Way:
    """The calls from the end of a stack of blocks to the logits."""

    stack: Sequence[Layer]
    norm: _Returned | None
    head: _Returned


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
        name, module = call.layer.name, call.layer.module
        if module in self._stored:
            self.values[name] = value.detach().clone()
        if module in self._lasts or module in self._stored:
            self.ends.pop(name, None)
            self.ends[name] = value
        if module in self._outer:
            argument = _first_tensor((call.args, call.kwargs))
            self.recent.append(_Returned(call.layer, argument, value))


def record_stream(
    prepared: Prepared, layers: Iterable[Layer], norm: str | None, head: str | None
) -> ResidualStream:
    """Run the model once, and return its residual stream."""
    module, chosen = prepared.module, tuple(layers)
    stacks = block_stacks(module)
    blocks = [layer for stack in stacks for layer in stack]
    inside = {inner for layer in blocks for inner in layer.module.modules()}
    inside -= {layer.module for layer in blocks}
    named = [_named(prepared, name) for name in (norm, head) if name not in (None, NO_NORM)]
    outer = [layer for layer in layers_of(module) if layer.module not in inside] + named
    recorder = StreamRecorder(chosen or blocks, stacks, outer)
    watched = {layer.name: layer for layer in (*chosen, *blocks, *outer)}
    edits = forward_interventions(prepared.interventions, module, prepared.seed)
    registry = CallRegistry(module)
    with edits, registry.subscribed(recorder, tuple(watched.values())):
        logits = _logits_of(prepared, forward(prepared))
    # In a model without such stacks, the layers that are chosen are taken for blocks.
    ways = [*stacks, *([layer] for layer in chosen)]
    way, is_chain = _find_way(prepared, recorder, ways, logits, norm, head)
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


def _find_way(
    prepared: Prepared,
    recorder: StreamRecorder,
    stacks: Sequence[Sequence[Layer]],
    logits: Tensor,
    norm: str | None,
    head: str | None,
) -> tuple[_Way, bool]:
    """The norm and the head, and whether they are a chain from the last block to the logits."""
    # The one that ran last comes first, and a single layer after all stacks.
    order = {name: n for n, name in enumerate(recorder.ends)}
    ran = [stack for stack in stacks if stack[-1].name in order]
    ran.sort(key=lambda stack: (len(stack) > 1, order[stack[-1].name]), reverse=True)
    ends = [(stack, recorder.ends[stack[-1].name]) for stack in ran]
    recent = [call for call in recorder.recent if call.layer.name != ROOT]
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
    return _Way(fitting[0], _nearest_norm(prepared, recent, call, norm), call), False


def _heads(
    prepared: Prepared, recent: Sequence[_Returned], logits: Tensor, name: str | None
) -> list[_Returned]:
    """The calls that may be that of the head: those that returned the logits, innermost first."""
    calls = [call for call in recent if call.argument is not None]
    if name is not None:
        head = _named(prepared, name).module
        return [call for call in calls if call.layer.module is head]
    made = [call for call in calls if _is_same(call.value, logits)]
    if not made:  # a model of transformers that changes the logits after its head
        getter = getattr(prepared.module, "get_output_embeddings", None)
        embeddings = getter() if callable(getter) else None
        made = [call for call in calls if call.layer.module is embeddings]
    return made


def _chains(
    recent: Sequence[_Returned],
    head: _Returned,
    stack: Sequence[Layer],
    end: Tensor,
    norm: str | None,
) -> Iterator[_Way]:
    """The ways from the end of a stack to the head, without a norm and with one."""
    assert head.argument is not None
    if norm in (None, NO_NORM) and _shares_storage(head.argument, end):
        yield _Way(stack, None, head)
    if norm == NO_NORM:
        return
    for call in recent:
        is_named = norm is None or call.layer.name == norm
        if is_named and call is not head and call.argument is not None:
            leads = _shares_storage(call.value, head.argument)
            if leads and _shares_storage(call.argument, end):
                yield _Way(stack, call, head)


def _nearest_norm(
    prepared: Prepared, recent: Sequence[_Returned], head: _Returned, name: str | None
) -> _Returned | None:
    """The call of the norm named; else the innermost leaf that returned what the head got."""
    assert head.argument is not None
    if name == NO_NORM:
        return None
    if name is not None:
        layer = _named(prepared, name)
        return _Returned(layer, None, head.argument)
    calls = (call for call in recent if call is not head and call.layer.leaf)
    return next((call for call in calls if _shares_storage(call.value, head.argument)), None)


def _raise_unknown_head(prepared: Prepared, recent: Sequence[_Returned], name: str | None) -> None:
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
