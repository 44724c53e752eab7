"""The first run of a sweep: which layers an edit fits, and runs that an interrupt can resume."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn

from hookscope.errors import CheckFailed, EditError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import first_difference
from hookscope.files.progress_types import Progress
from hookscope.hooks.edits.bound_edit import BoundEdit, apply_edit, is_editable
from hookscope.hooks.layers import Layer, summarize_coverage
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey, what_of
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tensor_sink import NO_SEQUENCE, locate_in
from hookscope.results.dimensions import channel_dim
from hookscope.results.records import Coverage, key_of
from hookscope.results.sweep import RunEffect, Runs, SkippedLayer
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import TensorPath, detach_clone, map_tensors, walk

log = logging.getLogger("hookscope")
SAVED_EVERY = 3.0  # seconds between two writes of the file
Place = TypeVar("Place", bound=Hashable)


class EditScan(CallSubscriber):
    """A run without changes that tries the edits of each layer on what the layer returns."""

    def __init__(
        self, prepared: Prepared, edits_of: Callable[[Layer], Sequence[BoundEdit]]
    ) -> None:
        self.prepared = prepared
        self.edits_of = edits_of
        self.calls: dict[nn.Module, int] = {}
        self.coverage = Coverage()
        self.faults: dict[Layer, str] = {}
        self.channels: dict[Layer, set[int]] = {}

    def run(self, other: CallSubscriber | None = None, layers: Sequence[Layer] = ()) -> Any:
        """Run the model and return its output."""
        module = self.prepared.module
        registry = CallRegistry(module)
        first = registry.subscribed(other, layers) if other is not None else nullcontext()
        with self.prepared.preserved(), first, registry.subscribed(self, self.prepared.layers):
            output = detach_clone(forward(self.prepared))
            self.calls = {called: registry.counts[called] for called in self.calls}
            self.coverage = summarize_coverage(module, self.prepared.layers, self.calls)
        return output

    def executed(self) -> list[Layer]:
        """Return the layers that ran, in the order in which they first returned."""
        order = {module: n for n, module in enumerate(self.calls)}
        ran = (layer for layer in self.prepared.layers if layer.module in order)
        return sorted(ran, key=lambda layer: order[layer.module])

    def left_out(self, *, channels: bool = False) -> Iterator[SkippedLayer]:
        """Yield the layers that ran and cannot be edited, or not all of their ``channels``."""
        for layer in self.executed():
            reason = self.faults.get(layer, "")
            counts = self.channels.get(layer, set())
            if channels and not reason and len(counts) > 1:
                reason = f"channels from {min(counts)} up, which some of its output tensors lack"
            if reason:
                yield SkippedLayer(layer.name, layer.type, reason)

    def before_call(self, call: ModuleCall) -> None:
        """Try edits of inputs."""
        self._try(call, INPUT, (call.args, call.kwargs))

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Note the call, and try edits of outputs."""
        if not call.failed:
            self.calls[call.layer.module] = call.number
            self._try(call, OUTPUT, call.output)

    def _try(self, call: ModuleCall, kind: str, value: Any) -> None:
        layer = call.layer
        edits = [bound for bound in self.edits_of(layer) if bound.edit.kind == kind]
        if not edits:
            return
        tensors: list[Tensor] = []
        located = False

        def attempt(path: TensorPath, tensor: Tensor) -> Tensor:
            nonlocal located
            if is_editable(edits[0], tensor):
                tensors.append(tensor)
                located |= self._attempt(
                    edits, tensor, RecordKey(layer, call.number, what_of(kind, path), kind)
                )
            return tensor

        try:
            map_tensors(value, attempt)
        except EditError as error:
            self.faults.setdefault(layer, error.reason)
            return
        if not tensors:
            verb = "returns" if kind == OUTPUT else "takes"
            self.faults.setdefault(layer, f"it {verb} no floating-point tensor")
        elif not located:
            self.faults.setdefault(layer, NO_SEQUENCE)
        counts = self.channels.setdefault(layer, set())
        counts.update(t.shape[channel_dim(layer.type, t.ndim)] for t in tensors if t.ndim)

    def _attempt(self, edits: Sequence[BoundEdit], tensor: Tensor, name: RecordKey) -> bool:
        """Apply the first edit, which raises if it does not fit. Return whether all are located."""
        key = key_of(name.layer.name, name.call, name.what)
        for n, bound in enumerate(edits):
            positions, located = bound.edit.positions, None
            if positions is not None:
                located = locate_in(positions, name, tensor, bound.place)
                if located is None:
                    return False
            if n == 0:
                apply_edit(bound, tensor, key, self.prepared.seed, located=located)
        return True


def warn_of_noise(clean: Any, again: Any) -> bool:
    """Warn if two runs without a change gave different outputs; return whether they did."""
    different = first_difference(clean, again)
    if different:
        log.warning(
            "A second run without a change gave a different result (%s differs, relative difference"
            " %.3g). Changes up to that size are noise.",
            different,
            relative_change(clean, again) or 0.0,
        )
    return bool(different)


def fingerprint(prepared: Prepared, clean: Any) -> dict[str, str | None]:
    """Return the entry of the metadata by which a later run knows that it is the same."""
    state = {**dict(prepared.module.named_parameters()), **dict(prepared.module.named_buffers())}
    tensors = walk((state, prepared.value, clean))
    return {"fingerprint": hash_tensors((" ".join(path), tensor) for path, tensor in tensors)}


def make_runs(
    result: Runs,
    places: Sequence[Place],
    run: Callable[[Place], RunEffect],
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Runs:
    """Return the result of all runs; write those that ``file`` lacks to it, after an error too."""
    stored: Sequence[Any] = () if file is None else result.unfinished(file)
    known = set(places)
    made = {effect.place: effect for effect in stored if effect.place in known}
    earlier = len(made)
    if earlier:
        log.info("resuming: %d of %d already done", earlier, len(places))

    def so_far() -> Runs:
        return result.with_effects([made[place] for place in places if place in made], earlier)

    saved = time.monotonic()
    try:
        if progress:
            progress(len(made), len(places))
        for place in places:
            if place in made:
                continue
            made[place] = run(place)
            if progress:
                progress(len(made), len(places))
            if file is not None and time.monotonic() - saved > SAVED_EVERY:
                so_far().save(file)
                saved = time.monotonic()
    finally:
        if file is not None and made:
            so_far().save(file)
    if all(effect.failed for effect in made.values()):
        first = made[places[0]]
        raise CheckFailed(
            f"The model failed with every change. The first, of {first.layer}: {first.failed}",
            "Try another change, or select other layers.",
        )
    return so_far()


def no_layer_reason(scan: EditScan, left_out: Sequence[SkippedLayer]) -> str:
    """Return why the first of the layers cannot be changed, if none can."""
    reasons = [f"{skipped.layer}: {skipped.reason}" for skipped in left_out]
    not_executed = scan.coverage.not_executed
    reasons += [f"{layer.module}: it never ran: {layer.reason}" for layer in not_executed]
    return reasons[0]
