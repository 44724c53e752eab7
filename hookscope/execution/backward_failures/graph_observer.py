"""Observes a pass: which line saved a tensor for the backward pass, and which changed it later.

With hooks on saved tensors, PyTorch leaves the comparison of versions to whoever unpacks them. So
it is made here, with the error that PyTorch raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from hookscope.execution.backward_failures.code_sites import CallSite, site_of_call
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.torch_state import inside_backward
from hookscope.tensors.torch_internals import (
    TorchDispatchMode,
    next_sequence_nr,
    pop_dispatch_mode,
    push_dispatch_mode,
)

OVERWRITTEN = "modified by an inplace operation"
INPUT, RESULT = "input", "output"


@dataclass(frozen=True)
class InPlaceChange:
    """A change of a saved tensor: the line, and the operator with its namespace."""

    site: CallSite | None
    operator: str
    in_backward: bool = False


@dataclass(eq=False)
class SavedTensor:
    """A tensor that a node of the graph needs in the backward pass."""

    tensor: Tensor
    version: int
    site: CallSite | None
    node: int  # sequence number of the node
    role: str
    changes: list[InPlaceChange] = field(default_factory=list)
    seen_version: int = -1

    def __post_init__(self) -> None:
        self.seen_version = self.version

    def notice(self, change: InPlaceChange) -> None:
        """Note a change if it was one of this tensor, and not only of its memory."""
        if self.tensor._version != self.seen_version:
            self.seen_version = self.tensor._version
            self.changes.append(change)

    @property
    def is_weight(self) -> bool:
        """Whether it is a parameter of the module that saved it."""
        modules = () if self.site is None else (self.site.layer, self.site.owner)
        return any(one is not None and self.parameter_of(one) for one in modules)

    def parameter_of(self, layer: nn.Module) -> str:
        """The name of the layer's own parameter that was saved; empty if it is not one."""
        place = _storage_of(self.tensor)
        for name, parameter in layer._parameters.items():
            if parameter is not None and _storage_of(parameter) == place:
                return name
        return ""


class GraphObserver(SignalSafeContext["GraphObserver"]):
    """Records what is saved and what is changed in place while the ``with`` block runs.

    With ``skips_functions``, the line of the node of a custom function is the one that applies it.

    Attributes:
        broken: the first saved tensor that a backward pass needed and found changed.
        node_sites: the line that made a node, by its sequence number.
    """

    def __init__(self, *, skips_functions: bool = False) -> None:
        self.broken: SavedTensor | None = None
        self.node_sites: dict[int, CallSite | None] = {}
        self._placed = next_sequence_nr()
        self._saved: dict[int, WeakSet[SavedTensor]] = {}
        self._last_operation = -1  # number of nodes when the last operation ran
        self._is_ours = False
        self._skips_functions = skips_functions
        # PyTorch counts the version up after an operation has passed the mode.
        self._unsettled: list[tuple[SavedTensor, InPlaceChange]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._mode = _ObservedOperations(self)

    def _enter(self) -> GraphObserver:
        self._hooks.__enter__()
        push_dispatch_mode(self._mode)
        return self

    def _leave(self, *error: object) -> None:
        pop_dispatch_mode()
        self._hooks.__exit__(*error)

    def around_operation(self, function: Any, call: Callable[[], Any], args: Any) -> Any:
        """Run an operation, and note what it changes."""
        if self._is_ours:
            return call()
        self._settle()
        count = next_sequence_nr()
        self._last_operation = count
        self._place_new_nodes(count)
        result = call()
        written = _written(function, args)
        saved = {one for t in written for one in self._saved.get(_storage_of(t), ())}
        if saved:
            change = InPlaceChange(site_of_call(), function.name(), inside_backward())
            self._unsettled += [(one, change) for one in saved]
        return result

    def saved_by(self, number: int) -> list[SavedTensor]:
        """Return what a node has saved and still holds."""
        return [one for group in self._saved.values() for one in group if one.node == number]

    def _place_new_nodes(self, count: int) -> None:
        """Note the line of the nodes that were made since the last time; most make one."""
        new = range(self._placed, count)
        if new:
            site = site_of_call(skips_functions=self._skips_functions)
            self.node_sites.update(dict.fromkeys(new, site))
            self._placed = count

    def _settle(self) -> None:
        """Note the changes of the last operation where the version was counted up."""
        for saved, change in self._unsettled:
            saved.notice(change)
        self._unsettled.clear()

    def _pack(self, tensor: Tensor) -> SavedTensor:
        self._settle()
        self._is_ours = True
        try:
            kept = tensor.detach()
        finally:
            self._is_ours = False
        count = next_sequence_nr()
        self._place_new_nodes(count)
        role = RESULT if count == self._last_operation else INPUT
        saved = SavedTensor(kept, tensor._version, site_of_call(), count - 1, role)
        self._saved.setdefault(_storage_of(kept), WeakSet()).add(saved)
        return saved

    def _unpack(self, saved: SavedTensor) -> Tensor:
        self._settle()
        if saved.tensor._version != saved.version:
            self.broken = self.broken or saved
            raise RuntimeError(
                "one of the variables needed for gradient computation has been"
                f" {OVERWRITTEN}: it is at version {saved.tensor._version}; expected version"
                f" {saved.version} instead."
            )
        return saved.tensor


class _ObservedOperations(TorchDispatchMode):  # type: ignore[misc]
    """Passes every operation through an observer."""

    def __init__(self, observer: GraphObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        return self._observer.around_operation(func, lambda: func(*args, **named), (args, named))


def _written(function: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Tensor]:
    """The tensors among the arguments that an operation changes, as its schema says."""
    args, kwargs = call
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found: list[Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        values = value if isinstance(value, list | tuple) else [value]
        found += [one for one in values if isinstance(one, Tensor)]
    return found


def _storage_of(tensor: Tensor) -> int:
    """The identity of the memory of a tensor; of the object if it has none, as sparse tensors."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)
