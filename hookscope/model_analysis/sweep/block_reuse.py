"""Which blocks of a model need not be computed again for a run that changes a layer.

Until the change, a run is the run without it. So a block that returned before may return what it
returned then, if it does nothing else and depends on nothing else, and so may a block whose own
output is changed. A block is reused if all of this holds in a run without the change:

- it was called once, with tensors and plain values, and returned tensors in plain containers,
- it changed no tensor that it got, no attribute, parameter or buffer of its modules, and no state
  of a random generator; its output shares no memory with what it got or owns,
- it has no hooks and no ``forward`` of its own that may do more.

Two more runs check that nothing outside of the blocks depends on them other than by their outputs:
in one all of them return their stored outputs, in the other all but the last. Every block must get
the same arguments, and the model must return the same output, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import HookscopeError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of, random_state
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import bit_identical, first_difference
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.sources.structure import modules_in
from hookscope.specs.module_names import ancestors, parent_of
from hookscope.specs.patterns import ROOT
from hookscope.tensors.nested import detach_clone, walk
from hookscope.tensors.torch_internals import GLOBAL_FORWARD_HOOKS, GLOBAL_FORWARD_PRE_HOOKS

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_LEAVES = frozenset({str, int, float, bool, type(None)})  # types of values that contain no others


def plain_fault(value: Any) -> str:
    """Return the kind of the first part of a value that cannot be copied and compared, if any.

    Example:
        >>> plain_fault((torch.ones(1), {"mask": None})), plain_fault([object()])
        ('', 'an object of type object')
    """
    if isinstance(value, Tensor):
        ordinary = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if not ordinary or value.is_nested or value.is_quantized or value.is_inference():
            return f"a tensor of type {type(value).__name__} that cannot be compared"
        return ""
    if isinstance(value, Mapping):
        return next(filter(None, map(plain_fault, value.values())), "")
    if isinstance(value, tuple | list):
        return next(filter(None, map(plain_fault, value)), "")
    return "" if type(value) in _PLAIN else f"an object of type {type(value).__name__}"


def same_values(first: Any, second: Any) -> bool:
    """Whether two plain values are the same: every bit, shape, stride, number and container."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return bit_identical(first, second) and first.stride() == second.stride()
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same_values(first[k], second[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same_values, first, second))
    return bool(first == second)


def memory_of(value: Any) -> set[int]:
    """Return the addresses of the storages of the tensors in a value."""
    storages = (tensor.untyped_storage() for _, tensor in walk(value))
    return {storage.data_ptr() for storage in storages if storage.nbytes()}


class ModuleState:
    """What a call of a module may change: its modules, its arguments and the random generators."""

    def __init__(self, module: nn.Module, given: Any) -> None:
        self.module = module
        self._parts, self._versions = _parts(module)
        self._buffers = [buffer.detach().clone() for buffer in module.buffers()]
        self._given = [(tensor, tensor._version) for _, tensor in walk(given)]
        self._gpus = gpus_of(module)
        self._generators = random_state(self._gpus)

    def change(self, given: Any) -> str:
        """Return what changed since; empty if nothing did."""
        if random_state(self._gpus) != self._generators:
            return "draws random numbers"
        if any(tensor._version != version for tensor, version in self._given):
            return "changes its input in place"
        buffers, before = list(self.module.buffers()), self._buffers
        if len(buffers) != len(before) or not all(map(bit_identical, buffers, before)):
            return "changes a buffer"
        parts, versions = _parts(self.module)
        same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        return "" if same and versions == self._versions else "changes an attribute"


def _parts(module: nn.Module) -> tuple[list[Any], list[int]]:
    """All that the modules in a module refer to, and the versions of the tensors in it.

    The objects themselves are returned, so that none of them is freed and another one gets its id.
    """
    visited: set[int] = set()
    found: list[Any] = [each.__dict__ for each in modules_in(module)]
    versions: list[int] = []
    for item in found:  # the loop goes on with what it adds
        kind = type(item)
        if kind in _LEAVES:
            continue
        if isinstance(item, Tensor):
            versions.append(-1 if item.is_inference() else item._version)
        elif id(item) not in visited:
            visited.add(id(item))
            found += _inner(item)
    return found, versions


def _inner(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return chain.from_iterable(item.items())
    if isinstance(item, tuple | list | set | frozenset):
        return list(item)
    # The modules of the block are searched from their own dicts. Other modules and functions are
    # not part of it.
    searched = hasattr(item, "__dict__") and not callable(item)
    return [vars(item)] if searched else []


class StoredOutputs(SignalSafeContext["StoredOutputs"]):
    """Lets modules return copies of stored outputs while the ``with`` block runs.

    A hook cannot skip a module's ``forward``, so an attribute of the instance replaces it.
    """

    def __init__(self, outputs: Mapping[nn.Module, Any]) -> None:
        self.outputs = outputs
        self.calls: dict[nn.Module, int] = dict.fromkeys(outputs, 0)

    def _enter(self) -> StoredOutputs:
        try:
            for module in self.outputs:
                module.forward = self._forward_of(module)
        except BaseException:
            self._leave()
            raise
        return self

    def _leave(self, *error: object) -> None:
        for module in self.outputs:
            module.__dict__.pop("forward", None)

    def _forward_of(self, module: nn.Module) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls[module] += 1
            return detach_clone(self.outputs[module])

        return forward


@dataclass(frozen=True)
class BlockReuse:
    """The blocks whose stored outputs are used again."""

    text: str
    before: Mapping[nn.Module, tuple[nn.Module, ...]] = field(default_factory=dict)
    outputs: Mapping[nn.Module, Any] = field(default_factory=dict, repr=False)

    def skipping(self, layer: Layer) -> StoredOutputs:
        """Return the context in which the blocks before a change return their stored outputs."""
        blocks = self.before.get(layer.module, ())
        return StoredOutputs({block: self.outputs[block] for block in blocks})


def find_blocks(model: nn.Module) -> tuple[Layer, ...]:
    """Return the children of each ``ModuleList`` and ``Sequential`` that is in no other one."""
    layers = {layer.name: layer for layer in layers_of(model)}
    containers = {
        name for name, x in layers.items() if isinstance(x.module, nn.ModuleList | nn.Sequential)
    }
    return tuple(
        layer
        for name, layer in layers.items()
        if name != ROOT and containers.intersection((ROOT, *ancestors(name))) == {parent_of(name)}
    )


class BlockObserver(CallSubscriber):
    """Notes in a run without changes what each block gets, returns and changes."""

    def __init__(self, prepared: Prepared, blocks: Sequence[Layer]) -> None:
        self.prepared = prepared
        self.blocks = {block.module for block in blocks}
        self.events: list[tuple[nn.Module, bool]] = []
        self.inputs: dict[nn.Module, Any] = {}
        self.outputs: dict[nn.Module, Any] = {}
        self.faults: dict[nn.Module, str] = {}
        for block in blocks:
            if reason := _own_code(block):
                self.faults[block.module] = reason

    def before_call(self, call: ModuleCall) -> ModuleState | None:
        """Note the arguments and the state of the modules."""
        module = call.layer.module
        self.events.append((module, True))
        if module not in self.blocks:
            return None
        if call.number != 1:
            self.faults.setdefault(module, f"{call.layer.name} is called more than once")
            return None
        given = (call.args, call.kwargs)
        if fault := plain_fault(given):
            self.faults.setdefault(module, f"{call.layer.name} gets {fault}")
        if module in self.faults:
            return None
        self.inputs[module] = detach_clone(given)
        return ModuleState(module, given)

    def after_call(self, call: ModuleCall, state: ModuleState | None) -> None:
        """Note the output, and compare the state."""
        module = call.layer.module
        self.events.append((module, False))
        if state is None or call.failed:
            return
        fault = state.change((call.args, call.kwargs)) or ""
        if not fault and (other := plain_fault(call.output)):
            fault = f"returns {other}"
        owned = [*module.parameters(), *module.buffers()]
        if not fault and memory_of(call.output) & memory_of((call.args, call.kwargs, owned)):
            fault = "returns memory that it got or owns"
        stored = None if fault else detach_clone(call.output)
        if not fault and not same_values(stored, call.output):
            fault = "returns a tensor that cannot be copied with its strides"
        if fault:
            self.faults.setdefault(module, f"{call.layer.name} {fault}")
        else:
            self.outputs[module] = stored

    def reusable(self) -> list[nn.Module]:
        """Return the blocks that can be reused, in the order in which they returned."""
        ended = [module for module, begins in self.events if not begins]
        return [m for m in ended if m in self.outputs and m not in self.faults]


class ArgumentComparison(CallSubscriber):
    """Compares the arguments of blocks with those of an earlier run."""

    def __init__(self, inputs: Mapping[nn.Module, Any]) -> None:
        self.inputs = inputs
        self.called: set[nn.Module] = set()
        self.different = ""

    def before_call(self, call: ModuleCall) -> None:
        """Compare the arguments."""
        module = call.layer.module
        same = module not in self.called and same_values(
            (call.args, call.kwargs), self.inputs[module]
        )
        self.called.add(module)
        if not same and not self.different:
            self.different = call.layer.name


def _own_code(block: Layer) -> str:
    """The reason why the modules of a block may do more than their class; empty if not."""
    for module in block.module.modules():
        if "forward" in module.__dict__:
            return f"{block.name} has a forward of its own"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{block.name} has hooks"
    return ""


def resolve_reuse(
    prepared: Prepared,
    clean: Any,
    observer: BlockObserver,
    layers: Sequence[Layer],
    *,
    changes_input: bool,
) -> BlockReuse:
    """Check that the blocks can be reused together; return which ones come before each change."""
    if prepared.train:
        return no_reuse("in train mode, runs may change buffers or be random")
    if GLOBAL_FORWARD_HOOKS or GLOBAL_FORWARD_PRE_HOOKS:
        return no_reuse("hooks on all modules of the process are registered")
    blocks = observer.reusable()
    if not blocks:
        reason = next(iter(observer.faults.values()), "the layers are in no chain of blocks")
        return no_reuse(reason)
    for count in (len(blocks), len(blocks) - 1):
        outputs = {block: observer.outputs[block] for block in blocks[:count]}
        if fault := _check(prepared, clean, observer, outputs):
            return no_reuse(fault)
    before: dict[nn.Module, tuple[nn.Module, ...]] = {}
    ended: list[nn.Module] = []
    chosen = {layer.module for layer in layers}
    for module, begins in observer.events:
        if not begins and module in blocks:
            ended.append(module)
        if begins == changes_input and module in chosen:
            before.setdefault(module, tuple(ended))
    if not any(before.values()):
        return no_reuse("no block returns before a changed layer")
    most = max(map(len, before.values()))
    text = f"The stored outputs of up to {most} block{'s' * (most != 1)} were used instead of"
    text += " computing them again; the results are the same."
    needed = {block for several in before.values() for block in several}
    return BlockReuse(text, before, {b: observer.outputs[b] for b in blocks if b in needed})


def no_reuse(reason: str) -> BlockReuse:
    """Return the result of a check that no stored output can be used."""
    return BlockReuse(f"Every run was computed from the start: {reason}.")


def _check(
    prepared: Prepared, clean: Any, observer: BlockObserver, outputs: Mapping[nn.Module, Any]
) -> str:
    """The reason why a run with stored outputs differs from the clean run; empty if it does not."""
    comparison = ArgumentComparison(observer.inputs)
    stored, calls = StoredOutputs(outputs), CallRegistry(prepared.module)
    names = [layer for layer in layers_of(prepared.module) if layer.module in observer.inputs]
    try:
        with prepared.preserved(), stored, calls.subscribed(comparison, names):
            output = detach_clone(forward(prepared))
    except HookscopeError as error:
        return f"the model fails with the stored outputs of its blocks ({error.message})"
    if any(count != 1 for count in stored.calls.values()):
        return "a block is also called without its hooks"
    if comparison.different or comparison.called != set(observer.inputs):
        name = comparison.different or "a block"
        return f"{name} gets other arguments if the blocks before it are not computed"
    if first_difference(clean, output):
        return "the output differs if its blocks are not computed"
    return ""
