"""What can be knocked out of a model: a run with nothing changed that looks at what layers give."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.errors import EditError
from hookscope.execution.forward import forward, settled, untouched
from hookscope.execution.prepare import Prepared
from hookscope.hooks.coverage import summarize_coverage
from hookscope.hooks.edits.plan import Bound, carry_out, is_editable
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import HookSet, what_of
from hookscope.results.ablation import LeftOut
from hookscope.results.dimensions import channel_dim
from hookscope.results.records import Coverage, key_of
from hookscope.specs.choices import KNOCKOUTS
from hookscope.specs.edit import read_edits
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.nested import Path, map_tensors


def knocked_out(layer: Layer, by: str, channel: int | None = None) -> Bound:
    """Return the edit that is a knock-out: of a whole layer, or of one of its channels."""
    [edit] = read_edits(f"*={KNOCKOUTS[by]}")
    place = layer.name if channel is None else f"{layer.name}[{channel}]"
    channels = None if channel is None else (channel,)
    word = f"{place}={KNOCKOUTS[by]}"
    return Bound(edit._replace(word=word, pattern=layer.name, channels=channels), 0, layer, {})


class Survey:
    """A run with nothing changed that notes what each layer gives, and whether the edit suits it.

    Attributes:
        calls: how often each layer's module ran, in the order in which they first returned.
        coverage: which of the layers ran.
    """

    def __init__(self, prepared: Prepared, by: str, channels: bool) -> None:
        self.prepared = prepared
        self.by = by
        self.channels = channels
        self.calls: dict[nn.Module, int] = {}
        self.coverage = Coverage()
        self._counts: dict[Layer, set[int]] = {}
        self._faults: dict[Layer, str] = {}

    def run(self) -> Any:
        """Run the model and return its output."""
        module = self.prepared.module
        guard = untouched(module, train=self.prepared.train, seed=self.prepared.seed)
        with guard, HookSet(module) as hooks:
            for layer in self.prepared.layers:
                hooks.after(layer.module, partial(self._look, layer))
            output = settled(forward(self.prepared))
            self.coverage = summarize_coverage(module, self.prepared.layers, self.calls)
        return output

    def places(self) -> Iterator[tuple[Layer, int | None]]:
        """Yield what can be knocked out: layers, with ``channels`` each with every channel."""
        for layer in self._ran():
            if layer in self._faults:
                continue
            if not self.channels:
                yield layer, None
                continue
            yield from ((layer, n) for n in range(min(self._counts[layer])))

    def left_out(self) -> Iterator[LeftOut]:
        """Yield the layers that ran and cannot be knocked out, or not in every channel."""
        for layer in self._ran():
            reason = self._faults.get(layer, "")
            least, most = (pick(self._counts.get(layer) or {0}) for pick in (min, max))
            if self.channels and not reason and least < most:
                reason = f"channels from {least} on, which not every tensor that it gives has"
            if reason:
                yield LeftOut(layer.name, layer.type, reason)

    def _ran(self) -> list[Layer]:
        order = {module: n for n, module in enumerate(self.calls)}
        ran = (layer for layer in self.prepared.layers if layer.module in order)
        return sorted(ran, key=lambda layer: order[layer.module])

    def _look(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = self.calls[module] = self.calls.get(module, 0) + 1
        bound = knocked_out(layer, self.by, 0 if self.channels else None)
        found = []

        def look(path: Path, tensor: Tensor) -> Tensor:
            if is_editable(bound, tensor):
                found.append(tensor)
                key = key_of(layer.name, call, what_of(OUTPUT, path))
                carry_out(bound, tensor, key, self.prepared.seed)  # raises where it does not suit
            return tensor

        try:
            map_tensors(output, look)
        except EditError as error:
            self._faults.setdefault(layer, error.reason)
            return
        if not found:
            self._faults.setdefault(layer, "it gives no floating-point tensor")
        counts = self._counts.setdefault(layer, set())
        counts.update(
            tensor.shape[channel_dim(layer.type, tensor.ndim)] for tensor in found if tensor.ndim
        )
