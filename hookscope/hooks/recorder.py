"""Recording: hooks on chosen layers that keep what goes through them, values and gradients.

What is recorded is the value at that moment. Outputs are cloned as the module returns them and
inputs before it runs, so no later in-place change can show.

Gradients come from hooks on tensors and on nodes of autograd's graph, since module backward hooks
crash most models that work in place. The model sees its own tensors and builds its own graph, so
its output and every sum of gradients are those of a run without hooks, bit for bit. At an output,
what arrives is the gradient of the loss with respect to the value as returned. At an input, it is
the share that flows back through this module alone: see ``shares``.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.hooks.capture import Capture
from hookscope.hooks.gradient_shares import Edge, GradientShare, GradientShares, next_node_number
from hookscope.hooks.layer_coverage import summarize_coverage
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.registry import HookSet, inside_backward, what_of
from hookscope.hooks.tensor_sink import VIEW_CHANGED, CaptureSink, RecordKey
from hookscope.results.module_tree import ROOT
from hookscope.specs.record_kinds import (
    INPUT,
    INPUT_GRAD,
    OUTPUT,
    OUTPUT_GRAD,
    PARAM_GRAD,
    UNEDITED,
)
from hookscope.tensors.clones import (
    InputClone,
    clone_preserving_strides,
    shared_storages,
    storage_id,
    with_type_and_attributes,
    write_back,
)
from hookscope.tensors.interrupts import SignalSafeContext
from hookscope.tensors.nested import TensorPath, distinct_tensors, map_tensors, opaque_types, walk

log = logging.getLogger("hookscope")

_CALL = nn.Module._call_impl.__code__

UNFINISHED = "the run ended before it"
USED_WITHIN = "the model returns this tensor and uses it within too, which cannot be told apart"
OFFLOADED = "offloaded: it holds no values but while its module runs"


@dataclass
class OpenCall:
    """One call of a module that is under way. ``number`` is 0 for one that is not recorded."""

    number: int
    lent: list[InputClone] = field(default_factory=list)
    handled: BaseException | None = None  # that which was being handled when it began
    first: int = 0  # number of the first node that it creates in the graph
    inputs: list[WatchedInput] = field(default_factory=list)


@dataclass
class WatchedInput:
    """A tensor that a call was given, and the call's share of its gradient."""

    tensor: Tensor
    version: int
    slot: RecordKey
    edge: Edge
    share: GradientShare

    @property
    def changed(self) -> bool:
        """Whether it was changed in place since."""
        return self.tensor._version != self.version


class _Running(threading.local):
    """The calls of each module that are under way on this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[OpenCall]] = {}


class Recorder(SignalSafeContext[Capture]):
    """Records the chosen layers of a model while the ``with`` block runs.

    Args:
        model: the model whose layers these are.
        layers: which modules to hook.
        kinds: what to keep, of ``output``, ``input``, ``output.grad``, ``input.grad`` and
            ``param.grad``.
        model_input: keep the gradient at the model's own input whatever else is chosen.
        max_bytes: stop with CheckFailed once more than this has been recorded.
        clones: hand clones on and listen to them. Gradients that are differentiated again make
            further uses of the model's own tensors, which no call can be said to have made.
        keeper: what keeps it, or only looks at it.

    Recording changes nothing in the model, with one exception: where the gradient at the model's
    own input is recorded and the input does not require grad, the model is given a clone that does.
    ``doubts`` names the modules for which that may matter.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[Layer],
        kinds: Iterable[str],
        *,
        model_input: bool = False,
        max_bytes: int | None = None,
        clones: bool = False,
        sink: Callable[[HookSet, int | None], CaptureSink] = CaptureSink,
    ) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.kinds = frozenset(kinds)
        self.model_input = model_input
        self.clones = clones
        self._hooks = HookSet(model)
        self.sink = sink(self._hooks, max_bytes)
        self.capture = self.sink.capture
        self._calls: dict[nn.Module, int] = {}
        self._running = _Running()
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._shares = GradientShares(self._hooks)
        self.ran_backward = False
        self.outside = "outside the loss"  # why no gradient came after a backward pass
        self._noticed: list[str] = []
        self._follows_gradients = model_input or bool(self.kinds & {INPUT_GRAD, OUTPUT_GRAD})
        self._kept_of = self._wanted()

    def _enter(self) -> Capture:
        with self._hooks.attaching() as hooks:
            if hooks.stands_in_for_compiled:
                log.info("torch.compile: run without compiled code, in which no hook would fire")
            for layer, kinds in self._kept_of.items():
                self._attach(layer, kinds)
            if PARAM_GRAD in self.kinds:
                self._attach_parameters()
            hooks.on_registration(self._add_module, self._add_parameter)
            self.sink.open = True
        return self.capture

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sink.open = False
        self._hooks.__exit__(kind, error, traceback)
        arrived = any(record.kind.endswith(".grad") for record in self.capture.records)
        ran = self.ran_backward or arrived
        reason = self.outside if ran else "backward() did not run"
        reason = reason if error is None else UNFINISHED
        for slot in self.sink.waiting:
            # What is changed in place goes on as the tensor that it is a view of, and so do views
            # of that made before: their own place in the graph leads nowhere.
            shared = (
                ", but for tensors that share its memory"
                if slot in self.sink.views and reason == self.outside
                else ""
            )
            self.sink.mark_absent(
                slot, reason + shared if self._calls.get(slot.layer.module) else "never ran"
            )
        self.capture.absent = tuple(self.sink.absent)
        coverage = summarize_coverage(
            self.model, self.layers, self._calls, self._hooks.called_elsewhere
        )
        if error is not None:
            not_executed = tuple(replace(one, reason=UNFINISHED) for one in coverage.not_executed)
            coverage = replace(coverage, not_executed=not_executed)
        self.capture.coverage = coverage

    @property
    def called_elsewhere(self) -> bool:
        """Whether threads called a chosen layer to which the recording does not belong."""
        return bool(self._hooks.called_elsewhere)

    @property
    def modified_inputs(self) -> list[str]:
        """Modules that changed their own clone of an input, which shared memory with another."""
        return list(dict.fromkeys(self._noticed))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within the block: its backward passes belong to something else."""
        self.sink.open = False
        try:
            yield
        finally:
            self.sink.open = True

    def _wanted(self) -> dict[Layer, frozenset[str]]:
        """The layers to hook and what to keep of each."""
        wanted = dict.fromkeys(self.layers, self.kinds)
        if self.model_input:
            root = next((x for x in self.layers if x.name == ROOT), Layer(ROOT, self.model))
            wanted[root] = wanted.get(root, frozenset()) | {INPUT_GRAD}
        elif self._follows_gradients and not any(x.module is self.model for x in wanted):
            wanted[Layer(ROOT, self.model)] = frozenset()  # where shares are told apart
        return wanted

    def _attach(self, layer: Layer, kinds: frozenset[str]) -> None:
        module = layer.module
        self._hooks.before(module, partial(self._before, layer, kinds))
        self._hooks.after(module, partial(self._after, layer, kinds), always=True)

    def _attach_parameters(self) -> None:
        """Listen to each distinct parameter of the chosen layers, under the first of its names."""
        owners: dict[nn.Parameter, list[tuple[Layer, str]]] = {}
        for layer in layers_of(self.model):
            for name, parameter in layer.module.named_parameters(recurse=False):
                owners.setdefault(parameter, []).append((layer, name))
        chosen = set(self.layers)
        for parameter, owned in owners.items():
            first = next((owner for owner in owned if owner[0] in chosen), None)
            if first is None:
                continue
            others = [owner for owner in owned if owner != first]
            self._listen_to_parameter(*first, parameter, others)

    def _listen_to_parameter(
        self, layer: Layer, name: str, parameter: Tensor, others: Iterable[tuple[Layer, str]] = ()
    ) -> None:
        """Listen to a parameter of a chosen layer, which ``others`` hold too."""
        slot = RecordKey(layer, 1, f"{name}.grad", PARAM_GRAD)
        if not parameter.requires_grad or parameter.is_meta:
            self.sink.mark_absent(slot, OFFLOADED if parameter.is_meta else "frozen")
            return
        names = [(alias, name) for alias in layer.aliases]
        names += [(one, n) for x, n in others for one in (x.name, *x.aliases)]
        aliases = tuple(f"{module}/{n}" for module, n in names)
        self.sink.listen_to_parameter(slot, parameter, aliases)

    def _add_module(self, owner: nn.Module, name: str, module: nn.Module | None) -> None:
        """Record a module that ``forward`` adds to a chosen layer as the layer itself."""
        above = next((x for x in self.layers if x.module is owner), None)
        if above is None or module is None or not self._is_running():
            return
        prefix = "" if above.name == ROOT else f"{above.name}."
        hooked = {layer.module for layer in self._kept_of}
        for inner in layers_of(module):
            if inner.module in hooked:
                continue
            full = f"{prefix}{name}" + ("" if inner.name == ROOT else f".{inner.name}")
            layer = Layer(full, inner.module)
            log.info("added: %s (%s) was not there before the run", layer.name, layer.type)
            self.layers += (layer,)
            self._kept_of[layer] = self.kinds
            self._attach(layer, self.kinds)
            for own, parameter in layer.module.named_parameters(recurse=False):
                self._add_parameter(layer.module, own, parameter)

    def _add_parameter(self, owner: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        layer = next((x for x in self.layers if x.module is owner), None)
        if PARAM_GRAD not in self.kinds or layer is None or parameter is None:
            return
        if self._is_running() and not is_lazy(parameter):
            self._listen_to_parameter(layer, name, parameter)

    def _is_running(self) -> bool:
        return self.sink.open and self.sink.under_way > 0

    def _before(
        self,
        layer: Layer,
        kinds: frozenset[str],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.sink.open:
            return None
        if module is self.model and any(self._running.calls.values()):
            self._forget_interrupted()
        module = layer.module  # which it is not in a replica of the model
        running = self._running.calls.setdefault(module, [])
        if inside_backward():  # activation checkpointing runs a forward pass again: not a new call
            running.append(OpenCall(0))
            return None
        with self._counting:
            number = self._calls[module] = self._calls.get(module, 0) + 1
            self.sink.under_way += 1
        call = OpenCall(number, handled=sys.exc_info()[1])
        running.append(call)
        with torch._C.DisableTorchFunctionSubclass():  # what a subclass does is the model's doing
            return self._begin(layer, kinds, call, (args, kwargs))

    def _forget_interrupted(self) -> None:
        """Forget this thread's open calls that are not on its stack.

        PyTorch calls no hook when a call ends with an exception that is not an ``Exception``, such
        as KeyboardInterrupt, and the block may go on after it.
        """
        calls = self._running.calls
        frame: FrameType | None = sys._getframe(1)
        outermost = False
        while frame is not None:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                if outermost and calls.get(module):
                    return
                outermost |= module is self.model
            frame = frame.f_back
        if not outermost:
            return
        with self._counting:
            self.sink.under_way -= sum(bool(call.number) for x in calls.values() for call in x)
        calls.clear()
        self._shares.forget()

    def _begin(
        self,
        layer: Layer,
        kinds: frozenset[str],
        call: OpenCall,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Record what a call is given; return what to give it in place of that, if anything."""
        if self._follows_gradients:
            call.first = self._shares.enter()
        if INPUT in kinds:
            self._keep(layer, call.number, INPUT, arguments)
        if INPUT_GRAD not in kinds:
            return None
        self._tell_repeats(layer, call.number, INPUT, arguments)
        lent: tuple[tuple[Any, ...], dict[str, Any]]
        lent = map_tensors(arguments, partial(self._take, layer, call))
        return lent

    def _after(
        self,
        layer: Layer,
        kinds: frozenset[str],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        if not self.sink.open:
            return None
        running = self._running.calls.get(layer.module)
        call = running.pop() if running else OpenCall(0)
        if not call.number:
            return None
        with self._counting:
            self.sink.under_way -= 1
        failed = sys.exc_info()[1] is not call.handled  # PyTorch calls this hook for a failure too
        with torch._C.DisableTorchFunctionSubclass():
            own = {id(lent.clone) for lent in call.lent}
            given = [x for _, x in walk((args, kwargs), whole=True) if id(x) not in own]
            return self._end(layer, kinds, call, given, None if failed else output, failed)

    def _end(
        self,
        layer: Layer,
        kinds: frozenset[str],
        call: OpenCall,
        given: Iterable[Tensor],
        output: Any,
        failed: bool,
    ) -> Any:
        """Record what a call returns, and listen for gradients."""
        shared = shared_storages([lent.original for lent in call.lent])
        for lent in call.lent:
            if not write_back(lent) or (lent.changed and storage_id(lent.original) in shared):
                self._noticed.append(layer.name)
        if failed and kinds:
            self.sink.mark_absent(
                RecordKey(layer, call.number, OUTPUT, OUTPUT), "an error ended its call"
            )
        elif OUTPUT in kinds:
            self._keep(layer, call.number, OUTPUT, output)
        if not self._follows_gradients:
            return output
        returned = distinct_tensors(output)
        self._close_inputs(call, returned.values())
        if OUTPUT_GRAD in kinds and not failed:
            if OUTPUT not in kinds:
                self._tell_closed(layer, call.number, OUTPUT, OUTPUT_GRAD, output)
            self._tell_repeats(layer, call.number, OUTPUT, output)
            output = map_tensors(output, partial(self._listen_to_output, layer, call))
        return self._shares.leave(output, given)

    def _keep(self, layer: Layer, call: int, kind: str, value: Any) -> None:
        """Record a clone of every tensor in ``value``."""
        for path, tensor in walk(value):
            self.sink.keep(RecordKey(layer, call, what_of(kind, path), kind), tensor)
        self._tell_closed(layer, call, kind, kind, value)

    def keep_edited(
        self, layer: Layer, call: int, what: str, kind: str, before: Tensor, after: Tensor
    ) -> None:
        """Record a tensor as it was before an edit, and what went on where nothing else does."""
        kept = [(UNEDITED, before)]
        if kind not in self._kept_of.get(layer, ()):
            kept.append(("", after))
        for mark, tensor in kept:
            self.sink.keep(RecordKey(layer, call, what + mark, kind + mark), tensor)

    def _tell_closed(self, layer: Layer, call: int, what: str, kind: str, value: Any) -> None:
        """Name what holds tensors out of reach, and an output without any tensor."""
        closed = opaque_types(value)
        for name in closed:
            reason = f"a {name} object, which hookscope does not open"
            self.sink.mark_absent(RecordKey(layer, call, what, kind), reason)
        if what == OUTPUT and not closed and next(walk(value), None) is None:
            self.sink.mark_absent(RecordKey(layer, call, what, kind), "no tensor came out")

    def _take(self, layer: Layer, call: OpenCall, path: TensorPath, tensor: Tensor) -> Tensor:
        """Listen for a module's share of the gradient at an input; returns what it is given."""
        what = f"{what_of(INPUT, path)}.grad"
        slot = RecordKey(layer, call.number, what, INPUT_GRAD)
        if layer.name == ROOT and _can_carry_gradient(tensor) and not tensor.requires_grad:
            own = tensor.detach()  # the caller's tensor stays as it is
            clone = clone_preserving_strides(
                (own.clone() if own.is_inference() else own).requires_grad_()
            )
            call.lent.append(InputClone.of(tensor, clone))
            tensor = call.lent[-1].clone
        if self.sink.can_listen(slot, tensor):
            if self.clones:
                call.lent.append(InputClone.of(tensor, clone_preserving_strides(tensor)))
                self.sink.listen(slot, call.lent[-1].clone)
                return call.lent[-1].clone
            edge = self._shares.edge(tensor)
            share = GradientShare(self.sink.expect(slot, tensor), call.first)
            self.sink.on_gradient(tensor, share.arrived)
            call.inputs.append(WatchedInput(tensor, tensor._version, slot, edge, share))
        return tensor

    def _close_inputs(self, call: OpenCall, returned: Iterable[Tensor]) -> None:
        """Count what uses a call's inputs from here on as its share no more."""
        same = {id(tensor) for tensor in returned}
        views = {storage_id(tensor) for tensor in returned if tensor._is_view()}
        for taken in call.inputs:
            if taken.changed and taken.tensor._is_view():
                self.sink.give_up(taken.slot, VIEW_CHANGED)
                continue
            if id(taken.tensor) in same and not taken.changed:
                taken.share.give_up = partial(self.sink.give_up, taken.slot, USED_WITHIN)
            else:
                taken.share.last = next_node_number()
                if storage_id(taken.tensor) in views:
                    slot, tensor = taken.slot, taken.tensor
                    taken.share.report = self.sink.expect(slot, tensor, has_view=True)
            self._shares.add(taken.edge, taken.share)

    def _listen_to_output(
        self, layer: Layer, call: OpenCall, path: TensorPath, tensor: Tensor
    ) -> Tensor:
        """Listen for the gradient at an output, as it comes from what uses it from here on.

        Returns what is handed on.
        """
        what = f"{what_of(OUTPUT, path)}.grad"
        slot = RecordKey(layer, call.number, what, OUTPUT_GRAD)
        if not self.sink.can_listen(slot, tensor):
            return tensor
        if self.clones:
            clone = with_type_and_attributes(clone_preserving_strides(tensor), tensor)
            self.sink.listen(slot, clone)
            return clone
        share = GradientShare(self.sink.expect(slot, tensor), next_node_number())
        share.give_up = partial(self.sink.give_up, slot, USED_WITHIN)
        self.sink.on_gradient(tensor, share.arrived)
        self._shares.add(self._shares.edge(tensor), share)
        return tensor

    def _tell_repeats(self, layer: Layer, call: int, kind: str, value: Any) -> None:
        """Name the places of a tensor that stands in ``value`` more than once.

        Self-attention is called with one tensor as query, key and value, and computes otherwise
        when they are not the same: so one tensor stands in all three, with one gradient.
        """
        first: dict[int, str] = {}
        for path, tensor in walk(value, whole=True):
            what = what_of(kind, path)
            if first.setdefault(id(tensor), what) != what:
                reason = f"the same tensor as {first[id(tensor)]}"
                self.sink.mark_absent(
                    RecordKey(layer, call, f"{what}.grad", f"{kind}.grad"), reason
                )


def _can_carry_gradient(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())
