"""The columns of a sweep: the positions, heads or experts at which a layer is edited."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EditError, RequestError
from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.files.signatures import signature_of
from hookscope.hooks.layers import Layer, own_parameters
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.located_positions import position_counts
from hookscope.results.records import Record
from hookscope.results.sweep import SweepColumn
from hookscope.results.tokens import PromptTokens
from hookscope.specs.position_spec import (
    Entry,
    IndexRange,
    Patch,
    Positions,
    TokenText,
    parse_positions,
)
from hookscope.specs.sweep_edit import ALL_POSITIONS, AUTO_HEADS
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.nested import walk

# The arguments of the modules of transformers: the numbers of the experts, and their weights.
_ROUTING = (("top_k_index", "top_k_weights"), ("router_indices", "routing_weights"))


@dataclass(frozen=True)
class EditPlace:
    """A column, and the part of a layer's output or input that it edits."""

    column: SweepColumn
    positions: Positions | None = None
    channel: int | None = None
    head: int | None = None
    expert: int | None = None


def position_places(prepared: Prepared, chosen: str, counts: tuple[int, ...]) -> list[EditPlace]:
    """Return a place for each position."""
    prompts = prompt_tokens(prepared.loaded, prepared.value)
    prompt = prompts[-1] if prompts else None
    if chosen == ALL_POSITIONS:
        entries: tuple[Entry, ...] = (IndexRange(0, _common(counts, chosen) - 1),)
    else:
        entries = parse_positions(chosen).entries
    single = dict.fromkeys(one for entry in entries for one in _split(entry, counts))
    return [_position_place(entry, name, prompt) for entry, name in single]


def _common(counts: tuple[int, ...], chosen: str) -> int:
    if len(set(counts)) > 1:
        few, many = min(counts), max(counts)
        raise RequestError(
            f"The texts have from {few} to {many} tokens, so --positions {chosen} does not name the"
            " same positions in each.",
            "Give the texts one by one, or name positions by number.",
        )
    return counts[0]


def _split(entry: Entry, counts: tuple[int, ...]) -> list[tuple[Entry, str]]:
    """The single positions of an entry, each with its name."""
    if isinstance(entry, IndexRange):
        first, last = entry.first, entry.last
        if (first < 0) != (last < 0):
            count = _common(counts, f"{first}-{last}")
            first, last = first % count, last % count
        for end in (first, last):
            if not -min(counts) <= end < min(counts):
                raise RequestError(
                    f"Position {end} is out of range: the input has {min(counts)} tokens.",
                    f"Count from 0 to {min(counts) - 1}, or from -1 at the end.",
                )
        if first > last:
            raise RequestError(
                f"The positions {entry.first}-{entry.last} are empty.",
                "Name the first position before the last.",
            )
        return [(IndexRange(n, n), str(n)) for n in range(first, last + 1)]
    if isinstance(entry, TokenText):
        return [(entry, f'"{entry.text}"')]
    return [(entry, f"{entry.row}x{entry.column}" if isinstance(entry, Patch) else "cls")]


def _position_place(entry: Entry, name: str, prompt: PromptTokens | None) -> EditPlace:
    label = name
    if prompt is not None and isinstance(entry, IndexRange):
        labels = {
            prompt.label(row, prompt.real(row)[entry.first]) for row in range(len(prompt.ids))
        }
        if len(labels) == 1:  # the rows may have different tokens there
            label = labels.pop()
    elif isinstance(entry, TokenText):
        label = entry.text
    return EditPlace(SweepColumn(name, label), Positions(name, (entry,)))


def resolve_head_count(module: nn.Module, heads: int | str) -> int:
    """Return the number of attention heads; that of the model's configuration for ``auto``."""
    if heads != AUTO_HEADS:
        return int(heads)
    config: Any = getattr(module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = getattr(text, "num_attention_heads", None)
    if not isinstance(count, int):
        raise RequestError(
            "The model has no configuration with a number of attention heads.",
            "Write it: --heads 12.",
        )
    return count


def head_channels(head: int, count: int, width: int) -> tuple[int, ...]:
    """Return the channels of a head among ``width`` channels of all heads."""
    size = width // count
    return tuple(range(head * size, (head + 1) * size))


class LayerShapes(CallSubscriber):
    """Notes the shape of the first tensor that each layer gets and returns in its first call."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.inputs: dict[Layer, tuple[int, ...]] = {}
        self.outputs: dict[Layer, tuple[int, ...]] = {}

    def run(self) -> None:
        """Run the model."""
        calls = CallRegistry(self.prepared.module)
        with self.prepared.preserved(), calls.subscribed(self, self.prepared.layers):
            forward(self.prepared)

    def before_call(self, call: ModuleCall) -> None:
        """Note the input."""
        _note(self.inputs, call.layer, (call.args, call.kwargs))

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Note the output."""
        if not call.failed:
            _note(self.outputs, call.layer, call.output)

    def input_widths(self) -> dict[Layer, int]:
        """Return the size of the last dimension of what each layer gets."""
        return {layer: shape[-1] for layer, shape in self.inputs.items() if shape}

    def position_counts(self, place: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the number of positions of each row, by the first layer that has some."""
        for layer, shape in self.outputs.items():
            record = Record("", layer.name, layer.type, 1, OUTPUT, OUTPUT, shape, "float32", "")
            if counts := position_counts(record, place):
                return counts
        return ()


def _note(shapes: dict[Layer, tuple[int, ...]], layer: Layer, value: Any) -> None:
    first = next((tensor for _, tensor in walk(value) if tensor.is_floating_point()), None)
    if first is not None:
        shapes.setdefault(layer, tuple(first.shape))


def expert_layers(prepared: Prepared) -> tuple[Layer, ...]:
    """Return the selected layers whose experts can be edited one at a time."""
    layers = tuple(layer for layer in prepared.layers if count_experts(layer.module))
    if not layers:
        raise RequestError(
            "None of the selected layers has experts that share its parameters and get their"
            " routing as arguments.",
            "Select such layers with --layer, as in '*.experts'. An expert that is a module of its"
            " own is a layer: select it, and leave out --experts.",
        )
    return layers


def common_expert_count(layers: tuple[Layer, ...]) -> int:
    """Return the number of experts of each layer."""
    counts = [count_experts(layer.module) for layer in layers]
    if len(set(counts)) > 1:
        raise RequestError(
            f"The layers have from {min(counts)} to {max(counts)} experts.",
            "Select layers with the same number of experts.",
        )
    return counts[0]


def count_experts(module: nn.Module) -> int:
    """Return how many experts a module has that gets their routing as arguments; 0 for others."""
    counts = {p.shape[0] for p in own_parameters(module).values() if p.ndim == 3}
    if len(counts) != 1 or not _routing_names(signature_of(module.forward)):
        return 0
    return counts.pop()


@dataclass(frozen=True)
class ExpertEdit(CallSubscriber):
    """Multiplies the weight of one expert, for all tokens that are routed to it."""

    expert: int
    factor: float

    def before_call(self, call: ModuleCall) -> None:
        """Replace the weights among the arguments."""
        signature = signature_of(call.module.forward)
        index, weights = _routing_names(signature) or ("", "")
        given = signature.bind(*call.args, **call.kwargs)
        chosen: Any = given.arguments.get(index)
        weight: Any = given.arguments.get(weights)
        are_tensors = isinstance(chosen, Tensor) and isinstance(weight, Tensor)
        if not are_tensors or chosen.shape != weight.shape:
            reason = f"{index} and {weights} are not two tensors of the same shape"
            layer = f"{call.layer.title} ({call.layer.type})"
            raise EditError(
                f"The experts of {layer} cannot be edited: {reason}.",
                "Leave out the layer.",
                reason,
            )
        new = torch.where(chosen == self.expert, weight * self.factor, weight)
        given.arguments[weights] = new
        call.args, call.kwargs = given.args, given.kwargs


def _routing_names(signature: inspect.Signature) -> tuple[str, str] | None:
    known = signature.parameters.keys()
    return next((names for names in _ROUTING if known >= set(names)), None)
