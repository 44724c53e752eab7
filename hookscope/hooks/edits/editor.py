"""Applies edits: to weights, to values in the forward pass and to gradients in the backward pass.

Edits of values are entered before a recorder, those of gradients after it.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.errors import EditError
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.edits.bound_edit import BoundEdit, apply_edit, is_editable
from hookscope.hooks.edits.edited_weights import EditedWeights
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey, what_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tensor_sink import locate_in
from hookscope.results.records import key_of
from hookscope.specs.edit import WEIGHTS
from hookscope.specs.tensor_key import INPUT, OUTPUT, OUTPUT_GRAD
from hookscope.tensors.grad_mode import carries_gradient, insert_gradient_gate
from hookscope.tensors.input_clones import with_type_and_attributes
from hookscope.tensors.nested import TensorPath, map_tensors


class Editor(CallSubscriber, SignalSafeContext["Editor"]):
    """Applies edits while the ``with`` block runs; afterwards no hook is left."""

    def __init__(
        self,
        model: nn.Module,
        bounds: tuple[BoundEdit, ...],
        seed: int,
        calls: CallRegistry | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.bounds = bounds
        self.seed = seed
        self.calls = CallRegistry(model) if calls is None else calls
        self.recorder = recorder
        self._weights = EditedWeights(bound for bound in bounds if bound.edit.kind == WEIGHTS)
        # By the position of an edit: the keys of the tensors that it changed.
        self.changed: dict[int, dict[str, None]] = {bound.position: {} for bound in bounds}
        for position, keys in self._weights.changed.items():
            self.changed[position] = dict.fromkeys(keys)
        self._edits: dict[Hashable, list[BoundEdit]] = {}  # by the keys of layers
        for bound in bounds:
            if bound.edit.kind != WEIGHTS:
                self._edits.setdefault(bound.layer.key, []).append(bound)

    def _enter(self) -> Editor:
        self._weights.put()
        try:
            edits = self._edits.values()
            self.calls.subscribe(self, [bound.layer for bounds in edits for bound in bounds])
        except BaseException:
            self._weights.restore()
            raise
        return self

    def _leave(self, *error: object) -> None:
        try:
            self.calls.unsubscribe(self)
        finally:
            self._weights.restore()

    def note_change(self, position: int, key: RecordKey) -> None:
        """Note that an edit changed a tensor."""
        self.changed[position][key_of(key.layer.name, key.call, key.what)] = None

    def check_effect(self) -> None:
        """Check that every edit changed a tensor."""
        for position, keys in self.changed.items():
            if keys:
                continue
            first = next(bound for bound in self.bounds if bound.position == position)
            calls = self.calls.counts.get(first.layer.key, 0)
            name = f"{first.layer.title} ({first.layer.type})"
            reason = f"{name} never ran"
            if calls:
                reason = f"no gradient reached {name}"
            if calls and first.edit.positions is not None:
                reason = f"no tensor of {name} has the positions @{first.edit.positions.text}"
            if calls and first.edit.call and first.edit.call > calls:
                reason = f"{name} was called {calls} time{'s' * (calls > 1)}"
            raise EditError(
                f"The edit {first.edit.text!r} changed nothing: {reason}.",
                "'hookscope capture' without edits shows which layers run, and how often.",
            )

    def before_call(self, call: ModuleCall) -> int:
        """Edit the inputs of a call; returns the number by which edits choose it."""
        number = call.number or self._number_of_uncounted(call)
        bounds = self._concerning(call, INPUT, number)
        if bounds:
            arguments = (call.args, call.kwargs)
            call.args, call.kwargs = self._change(call, number, INPUT, bounds, arguments)
        return number

    def after_call(self, call: ModuleCall, number: int) -> None:
        """Edit the output of a call, and its gradient."""
        if call.output is None:  # the module raised, or returned None
            return
        values = self._concerning(call, OUTPUT, number)
        if values:
            call.output = self._change(call, number, OUTPUT, values, call.output)
        gradients = self._concerning(call, OUTPUT_GRAD, number)
        if gradients:
            listen = partial(self._listen, call.layer, number, gradients)
            call.output = map_tensors(call.output, listen)

    def _concerning(self, call: ModuleCall, kind: str, number: int) -> list[BoundEdit]:
        bounds = self._edits[call.layer.key]
        return [bound for bound in bounds if bound.concerns(kind, number)]

    def _number_of_uncounted(self, call: ModuleCall) -> int:
        """The number of a call that checkpointing repeats, which must be the layer's only call."""
        count = self.calls.counts.get(call.layer.key, 0)
        if call.recomputed and count > 1:
            raise EditError(
                f"Activation checkpointing runs {call.layer.name} again, and it is not known which"
                f" of its {count} calls is repeated.",
                "Turn checkpointing off, or edit a layer that is called once.",
            )
        return count

    def _change(
        self, call: ModuleCall, number: int, kind: str, bounds: list[BoundEdit], value: Any
    ) -> Any:
        """The value with its tensors edited, in the same structure."""
        layer = call.layer
        pairs: list[tuple[str, Tensor, Tensor]] = []
        editable = False

        def change(path: TensorPath, tensor: Tensor) -> Tensor:
            nonlocal editable
            what = what_of(kind, path)
            editable = editable or any(is_editable(bound, tensor) for bound in bounds)
            new = self._edited(bounds, tensor, RecordKey(layer, number, what, kind))
            if new is not tensor:
                new = with_type_and_attributes(new, tensor)
                pairs.append((what, tensor, new))
            return new

        changed = map_tensors(value, change)
        if not editable:
            raise EditError(
                f"The edit {bounds[0].edit.text!r} finds no floating-point tensor in the {kind} of"
                f" {layer.title} ({layer.type}).",
                "Edit a layer before or after it.",
            )
        if self.recorder is not None and not call.recomputed:
            for what, old, new in pairs:
                self.recorder.store_edited(layer, number, what, kind, old, new)
        return changed

    def _edited(
        self,
        bounds: list[BoundEdit],
        tensor: Tensor,
        record_key: RecordKey,
        activation: Tensor | None = None,
    ) -> Tensor:
        """The tensor after all of the edits, in their order."""
        key = key_of(record_key.layer.name, record_key.call, record_key.what)
        for bound in bounds:
            if not is_editable(bound, tensor):
                continue
            positions, located = bound.edit.positions, None
            if positions is not None:
                located = locate_in(positions, record_key, tensor, bound.place)
                if located is None:  # another tensor of the call, or a later step of a generation
                    continue
            tensor = apply_edit(bound, tensor, key, self.seed, activation, located)
            self.note_change(bound.position, record_key)
        return tensor

    def _listen(
        self, layer: Layer, call: int, bounds: list[BoundEdit], path: TensorPath, tensor: Tensor
    ) -> Tensor:
        """A clone of an output; the gradient is edited between the clone and the output.

        So what is recorded at the clone, for a surrounding module, is not edited yet.
        """
        # A copy: later in-place changes of the output must not affect the penalties l1 and l2.
        needed = carries_gradient(tensor) and any(
            bound.edit.name in ("l1", "l2") for bound in bounds
        )
        activation = tensor.detach().clone() if needed else None
        what = f"{what_of(OUTPUT, path)}.grad"
        arrived = partial(self._arrived, layer, call, what, bounds, activation)
        clone: Tensor = insert_gradient_gate(tensor, lambda grads: tuple(map(arrived, grads)))
        return clone

    def _arrived(
        self,
        layer: Layer,
        call: int,
        what: str,
        bounds: list[BoundEdit],
        activation: Tensor | None,
        grad: Tensor | None,
    ) -> Tensor | None:
        if grad is None:
            return None
        # Not under no_grad: a gradient that is differentiated again needs its graph.
        key = RecordKey(layer, call, what, OUTPUT_GRAD)
        new = self._edited(bounds, grad, key, activation)
        if self.recorder is not None:
            self.recorder.store_edited(layer, call, what, OUTPUT_GRAD, grad, new)
        return new
