"""Follows the storages of tensors while a model runs: when each begins and ends, and whose it is.

A dispatch mode sees the outputs of every operator of PyTorch. A storage that was not seen before is
an allocation, and a weak reference to it tells when it ends. What an operator allocates and frees
inside itself is not seen.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from hookscope.hooks.layers import Layer, own_parameters
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.model_analysis.memory.allocations import Allocation, AllocationLog
from hookscope.model_analysis.memory.output_cache import OutputCache
from hookscope.model_analysis.memory.workspaces import workspaces
from hookscope.results.memory import FORWARD, LOSS, STEP
from hookscope.tensors.nested import operator_tensors
from hookscope.tensors.torch_internals import (
    TorchDispatchMode,
    cpu_attention,
    cpu_attention_backward,
    current_node,
    device_of,
    flash_attention,
    flash_attention_backward,
    native_attention,
    next_sequence_nr,
    value_of,
)

_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    cpu_attention: flop_registry.get(flash_attention, lambda *_, **__: 0),
    cpu_attention_backward: flop_registry.get(flash_attention_backward, lambda *_, **__: 0),
}


class LayerClock(CallSubscriber):
    """Tells which layer runs: the innermost in a forward pass, that of the node in a backward pass.

    Nodes of the graph are numbered in the order in which they are made, so the numbers at which the
    innermost layer changes tell whose each node is.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._open: list[str] = []
        self._numbers, self._names = [0], [LOSS]
        self._owners: dict[Tensor, str] = {
            parameter: layer.name
            for layer in layers
            for parameter in own_parameters(layer.module).values()
        }

    def before_call(self, call: ModuleCall) -> None:
        """Note that a layer begins."""
        self._open.append(call.layer.name)
        self._turn()

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Note that the innermost layer has ended."""
        self._open.pop()
        self._turn()

    def abandon_call(self, call: ModuleCall, state: None) -> None:
        """Forget a call that an interrupt ended."""
        self.after_call(call, state)

    def owner(self, parameter: Tensor) -> str:
        """Return the layer of a parameter; empty if it is of none."""
        return self._owners.get(parameter, "")

    def now(self) -> str:
        """Return the layer that runs now."""
        node = None if self._open else current_node()
        if node is None:
            return self._open[-1] if self._open else LOSS
        if (variable := getattr(node, "variable", None)) is not None:  # a gradient is added up
            return self.owner(variable)
        return self._names[bisect_right(self._numbers, node._sequence_nr()) - 1]

    def _turn(self) -> None:
        self._numbers.append(next_sequence_nr())
        self._names.append(self._open[-1] if self._open else LOSS)


class StorageTracker(TorchDispatchMode):  # type: ignore[misc]
    """Logs the storages that operators allocate within the block, in the current ``phase``."""

    def __init__(self, clock: LayerClock, operators: OutputCache) -> None:
        super().__init__()
        self._run = operators.run
        self.log, self.phase, self.flops = AllocationLog(), "", 0
        self.clock = clock
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}  # by address of the storage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps the compiler away, which takes as long as an operator."""
        return False

    def register(self, tensor: Tensor, kind: str, layer: str = "") -> None:
        """Log a tensor that was there before."""
        self._note(tensor, lambda: layer, "")
        self.mark((tensor,), kind)

    def mark(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Say what tensors are for. What they share with others that have a kind keeps it."""
        for tensor in tensors:
            number = self._number(tensor)
            if number is not None and self.log.allocations[number].kind == "temporary":
                self.log.allocations[number].kind = kind

    def mark_saved(self) -> None:
        """Say that what the forward pass allocated and is still alive is kept for the backward."""
        for _, number in self._live.values():
            one = self.log.allocations[number]
            if one.phase == FORWARD and one.kind == "temporary":
                one.kind = "saved"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is device_of:  # every read of a device; most calls are this
            return getattr(args[0], "fake_device", None) or func(*args)
        if func is value_of and self.phase == STEP and args[0].is_meta:
            return 1  # the memory of an optimizer does not depend on a norm
        output = self._run(func, args, kwargs or {})
        layer = partial(self._layer_of_first, args) if self.phase == STEP else self.clock.now
        made = [*operator_tensors(output)]
        if func._overloadpacket is native_attention and args[10:11] == (False,):
            made = made[:1]  # weights that were not asked for have a shape here, and no memory
        for index, tensor in enumerate(made):
            if self.phase == STEP and args and isinstance(args[0], list):  # of several parameters
                layer = partial(self._layer_of_first, args[0][index : index + 1])
            self._note(tensor, layer, func.name())
        for size in workspaces(func, args, output):
            number = self._begin(size, layer(), func.name())
            self.log.events[self.phase].append((number, False))
        if self.phase != STEP and (count := _FLOPS.get(func._overloadpacket)):
            self.flops += count(*args, **(kwargs or {}), out_val=output)
        return output

    def _note(self, tensor: Tensor, layer: Callable[[], str], operator: str) -> None:
        if self._number(tensor) is not None:
            return
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor, of whose parts operators were seen
            return
        number = self._begin(storage.nbytes(), layer(), operator)
        ended = partial(self._end, storage._cdata, number)
        self._live[storage._cdata] = weakref.ref(storage, ended), number

    def _begin(self, size: int, layer: str, operator: str) -> int:
        self.log.allocations.append(Allocation(size, layer, self.phase, operator))
        number = len(self.log.allocations) - 1
        self.log.events[self.phase].append((number, True))
        return number

    def _end(self, address: int, number: int, _: object) -> None:
        self._live.pop(address, None)
        self.log.events[self.phase].append((number, False))

    def _number(self, tensor: Tensor) -> int | None:
        """The number of the allocation that a tensor is in; None if it is not logged."""
        try:
            found = self._live.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:
            return None
        return None if found is None else found[1]

    def _layer_of_first(self, args: Iterable[Any]) -> str:
        """The layer of the first tensor among the arguments: an optimizer has no other."""
        numbers = (self._number(tensor) for tensor in operator_tensors(args))
        found = next((number for number in numbers if number is not None), None)
        return "" if found is None else self.log.allocations[found].layer
