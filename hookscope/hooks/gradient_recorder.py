"""Gradients at the inputs and outputs of calls, and at parameters.

They come from hooks on tensors and on nodes of autograd's graph, because module backward hooks fail
in most models with in-place operations. The gradient at an output is that with respect to the value
as returned, at an input the share of this module alone: see ``gradient_shares``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from hookscope.hooks import gradient_shares
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import ModuleCall, RecordKey, what_of
from hookscope.hooks.tensor_sink import TensorSink
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors import nested
from hookscope.tensors.input_clones import (
    InputClone,
    clone_preserving_strides,
    shared_storages,
    storage_id,
    with_type_and_attributes,
    write_back,
)
from hookscope.tensors.tensor_stats import euclidean_norm
from hookscope.tensors.torch_internals import next_sequence_nr

VIEW_CHANGED = "a view that was changed in place: its gradient arrives at another tensor"
TWICE = "the gradient of a backward pass after one with create_graph=True"

OnGradient = Callable[[Tensor | None], None]


USED_WITHIN = "the model both returns and uses this tensor: its gradient cannot be split"
OFFLOADED = "offloaded: it has values only while its module runs"


@dataclass(eq=False, slots=True)
class GradientListener:
    """The functions that a watcher calls with the gradient of one version of a tensor."""

    watcher: GradientWatcher
    version: int
    functions: list[OnGradient]

    def __call__(self, gradient: Tensor | None) -> None:
        """Call each of them."""
        for function in self.functions:
            function(gradient)


class GradientWatcher:
    """Puts gradients into a sink when they arrive."""

    def __init__(self, hooks: HookSet, sink: TensorSink) -> None:
        self.waiting: dict[RecordKey, None] = {}
        self.views: set[RecordKey] = set()
        self.refused: set[RecordKey] = set()  # parameters for which a function returned None
        self.open_calls = 0
        self._hooks = hooks
        self._sink = sink
        self._backward_passes: dict[RecordKey, int] = {}  # by the key of a parameter
        self._differentiable: dict[RecordKey, bool] = {}  # and whether a later pass came
        self._arrivals: dict[RecordKey, list[Tensor | None]] = {}

    @property
    def has_received(self) -> bool:
        """Whether a gradient has arrived."""
        return bool(self._arrivals or self._backward_passes)

    def can_watch(self, key: RecordKey, tensor: Tensor) -> bool:
        """Return whether a gradient can arrive at a tensor; if not, note why."""
        reason = ""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            reason = "integer" if tensor.dtype is not torch.bool else "bool"
        elif nested.is_functorch_tensor(tensor):
            reason = nested.FUNCTORCH_REASON
        elif not torch.is_grad_enabled():
            reason = "computed without autograd"
        elif not tensor.requires_grad:
            reason = "nothing before it requires grad"
        if reason:
            self._sink.mark_absent(key, reason)
        return not reason

    def watch(self, key: RecordKey, tensor: Tensor) -> None:
        """Record the gradient of a tensor once it arrives."""
        self.on_gradient(tensor, self.expect(key, tensor))

    def expect(self, key: RecordKey, tensor: Tensor, *, has_view: bool = False) -> OnGradient:
        """Return a function that records the gradient of ``tensor``, as it is now, under ``key``.

        With ``has_view`` a part arrives through a view that is used elsewhere.
        """
        self.waiting[key] = None
        if not has_view and not tensor._is_view():
            return partial(self._on_arrival, key)
        self.views.add(key)
        # After a change in place, autograd continues with the base of the view. The gradient that
        # arrives here then comes only from the uses before the change.
        alias = tensor.detach()
        return partial(self._on_arrival_at_view, key, alias, alias._version)

    def on_gradient(self, tensor: Tensor, function: OnGradient) -> None:
        """Call ``function`` with the gradient of a tensor, before those that were added earlier."""
        for listener in self._hooks.listeners_of(tensor):
            if (
                isinstance(listener, GradientListener)
                and listener.watcher is self
                and listener.version == tensor._version
            ):
                listener.functions.insert(0, function)
                return
        self._hooks.listen(tensor, GradientListener(self, tensor._version, [function]))

    def give_up(self, key: RecordKey, reason: str) -> None:
        """Stop waiting for a gradient."""
        if key in self.waiting:
            del self.waiting[key]
            self._sink.mark_absent(key, reason)

    def watch_parameter(self, key: RecordKey, parameter: Tensor) -> None:
        """Record the gradient of each backward pass at a parameter, under the pass's number."""
        self._hooks.listen(parameter, partial(self._on_parameter, key, ref(parameter)))
        self.waiting[key] = None

    def _on_arrival_at_view(
        self, key: RecordKey, alias: Tensor, version: int, gradient: Tensor | None
    ) -> None:
        if alias._version == version:
            self._on_arrival(key, gradient)
        elif self._sink.open and not self.open_calls:
            self.give_up(key, VIEW_CHANGED)

    def _on_arrival(self, key: RecordKey, gradient: Tensor | None) -> None:
        """Record a gradient; a second backward through the same graph adds, as ``.grad`` does."""
        if gradient is None or not self._sink.open or self.open_calls:
            return
        if key in self._arrivals and not self._sink.adds_gradients:
            return
        if key in self._differentiable:
            if not self._differentiable[key]:
                self._sink.mark_absent(key, TWICE)
            self._differentiable[key] = True
            return
        if torch.is_grad_enabled():
            self._differentiable[key] = False
        parts = list(nested.walk(gradient)) if gradient.is_nested else [((), gradient)]
        if key in self._arrivals:
            self._sink.capture.wait()
            for total, (_, part) in zip(self._arrivals[key], parts, strict=True):
                if total is not None:
                    _add_to(total, part.detach())
            return
        stored = self._arrivals[key] = []
        for path, part in parts:
            part_key = key
            if path:
                what = ".".join((key.what.removesuffix(".grad"), *path)) + ".grad"
                part_key = RecordKey(key.layer, key.call, what, key.kind)
            stored.append(self._sink.store_gradient(part_key, part.detach()))
        self.waiting.pop(key, None)

    def _on_parameter(
        self, key: RecordKey, reference: ref[Tensor], gradient: Tensor | None
    ) -> None:
        parameter = reference()
        if not self._sink.open or self.open_calls or parameter is None:
            return
        if gradient is None:  # PyTorch calls this for a parameter that the pass reached
            self.refused.add(key)
            return
        self.waiting.pop(key, None)
        # The number of a backward pass, not of a call of the module.
        number = self._backward_passes[key] = self._backward_passes.get(key, 0) + 1
        numbered = RecordKey(key.layer, number, key.what, key.kind, key.aliases)
        if reason := nested.unreadable_reason(gradient) or nested.unreadable_reason(parameter):
            self._sink.mark_absent(numbered, reason)
            return
        wide = torch.promote_types(parameter.dtype, torch.float32)
        norm = float(euclidean_norm(parameter.detach(), dtype=wide))
        if math.isinf(norm):  # beyond float32, in which the norm is computed where it fits
            wide = torch.promote_types(wide, torch.float64)
            norm = float(euclidean_norm(parameter.detach(), dtype=wide))
        self._sink.store_gradient(numbered, gradient.detach(), weight_norm=norm)


def _add_to(total: Tensor, part: Tensor) -> None:
    """Add a gradient to a stored one, in place; either may be sparse, as those of embeddings."""
    if part.layout is not total.layout:
        dense = part.to_dense()
        part = dense if total.layout is torch.strided else dense.to_sparse(total.sparse_dim())
    total.add_(part.to(total.device))


@dataclass
class CallGradients:
    """The state of the gradients of an open call."""

    clones: list[InputClone] = field(default_factory=list)
    first_node: int = 0
    inputs: list[WatchedInput] = field(default_factory=list)
    entered: bool = False


@dataclass
class WatchedInput:
    """An input of a call, and the call's share of its gradient."""

    tensor: Tensor
    version: int
    key: RecordKey
    edge: gradient_shares.Edge
    share: gradient_shares.GradientShare

    @property
    def changed(self) -> bool:
        """Whether it was changed in place after the call began."""
        return self.tensor._version != self.version


class GradientRecorder:
    """Watches gradients at the inputs and outputs of the calls of a model, and at parameters."""

    def __init__(self, hooks: HookSet, sink: TensorSink, *, clones: bool) -> None:
        self.watcher = GradientWatcher(hooks, sink)
        self.modified_inputs: list[str] = []
        self._sink = sink
        self._clones = clones
        self._shares = gradient_shares.GradientShares(hooks)

    def has_whole_share(self, output: Tensor) -> bool:
        """Whether nothing has used an output when the call ends, and it is watched itself."""
        return not self._clones and gradient_shares.is_newest(output)

    def watch_parameter(
        self, layer: Layer, name: str, parameter: Tensor, others: Iterable[tuple[Layer, str]] = ()
    ) -> None:
        """Watch a parameter of a layer, which ``others`` share."""
        key = RecordKey(layer, 1, f"{name}.grad", PARAM_GRAD)
        if not parameter.requires_grad or parameter.is_meta:
            self._sink.mark_absent(key, OFFLOADED if parameter.is_meta else "frozen")
            return
        names = [(alias, name) for alias in layer.aliases]
        names += [(x, n) for other, n in others for x in (other.name, *other.aliases)]
        key.aliases = tuple(f"{x}/{n}" for x, n in names)
        self.watcher.watch_parameter(key, parameter)

    def begin_call(self, call: ModuleCall, state: CallGradients, *, inputs: bool) -> None:
        """A call begins. With ``inputs`` watch its inputs, which may be replaced by clones."""
        state.first_node = self._shares.enter(call.output)
        state.entered = True
        if inputs:
            arguments = (call.args, call.kwargs)
            self._mark_repeats(call, INPUT, arguments)
            call.args, call.kwargs = nested.map_tensors(
                arguments, partial(self._watch_input, call, state)
            )

    def close_inputs(self, call: ModuleCall, state: CallGradients) -> None:
        """End the call's shares of its inputs: later uses do not count."""
        returned = list(nested.distinct_tensors(call.output).values())
        same = {id(tensor) for tensor in returned}
        views = {storage_id(tensor) for tensor in returned if tensor._is_view()}
        for watched in state.inputs:
            key, tensor, share = watched.key, watched.tensor, watched.share
            if watched.changed and tensor._is_view():
                self.watcher.give_up(key, VIEW_CHANGED)
                continue
            if id(tensor) in same and not watched.changed:
                share.give_up = partial(self.watcher.give_up, key, USED_WITHIN)
            else:
                share.last = next_sequence_nr()
                if storage_id(tensor) in views:
                    share.report = self.watcher.expect(key, tensor, has_view=True)
            self._shares.add(watched.edge, share)

    def watch_outputs(self, call: ModuleCall) -> None:
        """Watch the outputs of a call, which may be replaced by clones."""
        self._mark_repeats(call, OUTPUT, call.output)
        call.output = nested.map_tensors(call.output, partial(self._watch_output, call))

    def end_call(self, call: ModuleCall, state: CallGradients) -> None:
        """A call ends; its output may be replaced by a clone."""
        state.entered = False
        if not self._shares.leave():
            return
        clones = {id(clone.clone) for clone in state.clones}
        given = [
            x for _, x in nested.walk((call.args, call.kwargs), whole=True) if id(x) not in clones
        ]
        call.output = self._shares.resolve(call.output, given)

    def abandon_call(self, state: CallGradients) -> None:
        """Forget a call that did not come to ``end_call``."""
        if state.entered:
            state.entered = False
            self._shares.abandon()

    def write_back_clones(self, call: ModuleCall, state: CallGradients) -> None:
        """Copy in-place changes of the clones of inputs to the caller's tensors."""
        shared = shared_storages([clone.original for clone in state.clones])
        for clone in state.clones:
            changed_shared = clone.changed and storage_id(clone.original) in shared
            if not write_back(clone) or changed_shared:
                self.modified_inputs.append(call.layer.name)

    def _watch_input(
        self, call: ModuleCall, state: CallGradients, path: nested.TensorPath, tensor: Tensor
    ) -> Tensor:
        """Watch a module's share of the gradient at an input; return the input to pass to it."""
        layer = call.layer
        key = RecordKey(layer, call.number, f"{what_of(INPUT, path)}.grad", INPUT_GRAD)
        is_smooth = tensor.is_floating_point() or tensor.is_complex()
        lacks_grad = torch.is_grad_enabled() and is_smooth and not tensor.requires_grad
        if layer.name == ROOT and lacks_grad:
            own = tensor.detach()  # the caller's tensor must not change
            leaf = (own.clone() if own.is_inference() else own).requires_grad_()
            state.clones.append(InputClone.of(tensor, clone_preserving_strides(leaf)))
            tensor = state.clones[-1].clone
        if not self.watcher.can_watch(key, tensor):
            return tensor
        if self._clones:
            state.clones.append(InputClone.of(tensor, clone_preserving_strides(tensor)))
            self.watcher.watch(key, state.clones[-1].clone)
            return state.clones[-1].clone
        edge = self._shares.edge(tensor)
        share = gradient_shares.GradientShare(self.watcher.expect(key, tensor), state.first_node)
        self.watcher.on_gradient(tensor, share.arrived)
        state.inputs.append(WatchedInput(tensor, tensor._version, key, edge, share))
        return tensor

    def _watch_output(self, call: ModuleCall, path: nested.TensorPath, tensor: Tensor) -> Tensor:
        """Watch the gradient at an output, from its uses after the call; return the output."""
        what = f"{what_of(OUTPUT, path)}.grad"
        key = RecordKey(call.layer, call.number, what, OUTPUT_GRAD)
        if not self.watcher.can_watch(key, tensor):
            return tensor
        if self._clones:
            clone = with_type_and_attributes(clone_preserving_strides(tensor), tensor)
            self.watcher.watch(key, clone)
            return clone
        if gradient_shares.is_newest(tensor):
            self.watcher.watch(key, tensor)
            return tensor
        share = gradient_shares.GradientShare(self.watcher.expect(key, tensor), next_sequence_nr())
        share.give_up = partial(self.watcher.give_up, key, USED_WITHIN)
        self.watcher.on_gradient(tensor, share.arrived)
        self._shares.add(self._shares.edge(tensor), share)
        return tensor

    def _mark_repeats(self, call: ModuleCall, kind: str, value: Any) -> None:
        """Note the repeats of a tensor that is in ``value`` more than once, with one gradient.

        Self-attention takes another path if query, key and value are not the same tensor.
        """
        first: dict[int, str] = {}
        for path, tensor in nested.walk(value, whole=True):
            what = what_of(kind, path)
            if first.setdefault(id(tensor), what) != what:
                key = RecordKey(call.layer, call.number, f"{what}.grad", f"{kind}.grad")
                self._sink.mark_absent(key, f"the same tensor as {first[id(tensor)]}")
