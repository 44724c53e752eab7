"""A run that notes the shapes that layers get and return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope.execution.forward import forward
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.positions import position_counts
from hookscope.results.records import Record
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.nested import walk


class LayerShapes(CallSubscriber):
    """Notes the shape of the first tensor that each layer gets and returns in its first call."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.inputs: dict[Layer, tuple[int, ...]] = {}
        self.outputs: dict[Layer, tuple[int, ...]] = {}

    def run(self) -> None:
        """Run the model."""
        module = self.prepared.module
        guard = preserve_model_state(module, train=self.prepared.train, seed=self.prepared.seed)
        with guard, CallRegistry(module).subscribed(self, self.prepared.layers):
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
