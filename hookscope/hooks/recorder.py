"""Recording: hooks on chosen layers that store clones of inputs, outputs and gradients.

The idea in plain torch, for outputs::

    from collections import Counter

    def record(model, names, *inputs):
        tensors, calls, handles = {}, Counter(), []

        def hook_of(name):
            def store(module, args, output):
                calls[name] += 1  # a module may be called several times in one run
                key = name if calls[name] == 1 else f"{name}:{calls[name]}"
                # A clone, because the next operation may overwrite the output in place.
                tensors[f"{key}/output"] = output.detach().clone()

            return store

        try:
            for name in names:
                handles.append(model.get_submodule(name).register_forward_hook(hook_of(name)))
            model(*inputs)
        finally:
            for handle in handles:
                handle.remove()  # even if the model fails
        return tensors

The rest of this file is for what this leaves out: inputs, gradients, nested values, shared modules,
modules that ``forward`` adds, several threads, edits, and runs that fail or are interrupted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.errors import RequestError
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.capture import Capture
from hookscope.hooks.gradient_recorder import CallGradients, GradientRecorder
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import Layer, layers_of, own_parameters, summarize_coverage
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey, what_of
from hookscope.hooks.recurrent_states import recurrent_states
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tensor_sink import CaptureSink, TensorSink
from hookscope.results.records import Coverage, free_name
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import (
    GATE,
    INPUT,
    INPUT_GRAD,
    OP,
    OUTPUT,
    OUTPUT_GRAD,
    PARAM_GRAD,
    STATE,
    UNEDITED,
)
from hookscope.tensors.nested import opaque_types, walk
from hookscope.tensors.torch_internals import DisableTorchFunctionSubclass

log = logging.getLogger("hookscope")

RETURNED_NONE = "a backward function returned None for it"
UNFINISHED = "the run ended before it"


@dataclass
class OpenCall:
    """A recorded call that has not ended."""

    gradients: CallGradients | None = None
    counted: bool = True


class Recorder(CallSubscriber, SignalSafeContext[Capture]):
    """Records the chosen layers of a model while the ``with`` block runs.

    Recording changes nothing in the model, with one exception: ``model_input`` also records the
    gradient at the model's own input, and an input that does not require grad is replaced by a
    clone that does. ``modified_inputs`` names the modules for which that may matter.

    With ``clones`` gradients are watched at clones: those that are differentiated again add uses of
    tensors that belong to no call.
    """

    hooks_class: ClassVar[type[HookSet]] = HookSet

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[Layer],
        kinds: Iterable[str],
        *,
        model_input: bool = False,
        clones: bool = False,
        sink: TensorSink | None = None,
        caches: bool = False,
    ) -> None:
        self.caches = caches
        self.layers = tuple(layers)
        self.kinds = frozenset(kinds)
        self.model_input = model_input
        self.calls = CallRegistry(model, self.hooks_class(model))
        self.sink: TensorSink = CaptureSink() if sink is None else sink
        self.capture = self.sink.capture
        self.ran_backward = False
        self.outside = "outside the loss"  # why no gradient came after a backward pass
        self._hooks = self.calls.hooks.part()
        self.gradients = GradientRecorder(self._hooks, self.sink, clones=clones)
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._follows_gradients = model_input or bool(self.kinds & {INPUT_GRAD, OUTPUT_GRAD})
        self._kinds_of: dict[Hashable, frozenset[str]] = {}  # by the keys of layers
        self._causes: dict[str, str] = {}  # why layers did not run whose modules are gone

    def _enter(self) -> Capture:
        self._check_recurrent()
        wanted = self._wanted()
        self._kinds_of = {layer.key: kinds for layer, kinds in wanted.items()}
        self.capture.name_layers(layer.name for layer in wanted)
        self.calls.subscribe(self, wanted)
        try:
            if PARAM_GRAD in self.kinds:
                self._watch_parameters()
            self._hooks.on_registration(self._add_module, self._add_parameter)
        except BaseException:
            self._remove_hooks()
            raise
        if self.calls.hooks.stands_in_for_compiled:
            log.info(
                "torch.compile: the model runs uncompiled, because compiled code calls no hooks"
            )
        self.sink.open = True
        return self.capture

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.sink.open = False
        self._remove_hooks()
        self.capture.make_keys()
        self._mark_waiting(self.calls.counts, error)
        self.capture.absent = tuple(self.sink.absent)
        coverage = self.coverage()
        if error is not None:
            unfinished = (replace(layer, reason=UNFINISHED) for layer in coverage.not_executed)
            coverage = replace(coverage, not_executed=tuple(unfinished))
        self.capture.coverage = coverage

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.calls.model

    def note_state(self) -> None:
        """Note what the modules are asked for in the end; those of a program may be gone then."""
        self._causes = {one.module: one.reason for one in self.coverage().not_executed}

    def coverage(self) -> Coverage:
        """Return which layers ran, and why the others did not."""
        counts = self.calls.counts_of(self._kinds_of)
        elsewhere = self.calls.hooks.called_elsewhere
        return summarize_coverage(self.model, self.layers, counts, elsewhere, self._causes)

    def _remove_hooks(self) -> None:
        self._hooks.remove()
        self.calls.unsubscribe(self)

    def _mark_waiting(self, counts: dict[Hashable, int], error: BaseException | None) -> None:
        """Note why the gradients that have not arrived are absent."""
        watcher = self.gradients.watcher
        arrived = self.ran_backward or watcher.has_received
        reason = self.outside if arrived else "backward() did not run"
        if error is not None:
            reason = UNFINISHED
        for key in watcher.waiting:
            if key in watcher.refused and error is None:
                self.sink.mark_absent(key, RETURNED_NONE)
                continue
            # After a change in place, autograd continues with the base of a view, also for earlier
            # views of that base: nothing reaches their own nodes in the graph.
            shared = (
                ", except for tensors that share its memory"
                if key in watcher.views and reason == self.outside
                else ""
            )
            self.sink.mark_absent(
                key, reason + shared if counts.get(key.layer.key) else "never ran"
            )

    @property
    def called_elsewhere(self) -> bool:
        """Whether a thread that is not part of the recording called a chosen layer."""
        return not self.calls.hooks.called_elsewhere.isdisjoint(x.module for x in self.layers)

    @property
    def modified_inputs(self) -> list[str]:
        """Modules that changed a clone of an input that shares memory with another input."""
        return list(dict.fromkeys(self.gradients.modified_inputs))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within the block, whose backward passes are not part of the recording."""
        self.sink.open = False
        try:
            with self.calls.paused():
                yield
        finally:
            self.sink.open = True

    def _wanted(self) -> dict[Layer, frozenset[str]]:
        """The layers to hook and what to record of each."""
        wanted = dict.fromkeys(self.layers, self.kinds)
        if self.model_input:
            root = next((x for x in self.layers if x.name == ROOT), self._root())
            wanted[root] = wanted.get(root, frozenset()) | {INPUT_GRAD}
        elif self._follows_gradients and not any(x.module is self.model for x in wanted):
            wanted[self._root()] = frozenset()  # where shares are separated
        return wanted

    def _root(self) -> Layer:
        return self.calls.hooks.layer(ROOT, self.model)

    def _watch_parameters(self) -> None:
        """Watch each distinct parameter of the chosen layers, under the first of its names."""
        owners: dict[nn.Parameter, list[tuple[Layer, str]]] = {}
        chosen = {layer.module: layer for layer in self.layers}  # their names may be longer
        for layer in layers_of(self.model):
            for name, parameter in own_parameters(layer.module).items():
                owners.setdefault(parameter, []).append((chosen.get(layer.module, layer), name))
        for parameter, owned in owners.items():
            first = next((owner for owner in owned if owner[0].module in chosen), None)
            if first is not None:
                others = [owner for owner in owned if owner != first]
                self.gradients.watch_parameter(*first, parameter, others)

    def _add_module(self, owner: nn.Module, name: str, module: nn.Module | None) -> None:
        """Record a module that ``forward`` adds to a chosen layer as the layer itself."""
        above = next((x for x in self.layers if x.module is owner), None)
        if above is None or module is None or not self._is_running():
            return
        prefix = "" if above.name == ROOT else f"{above.name}."
        hooked = set(self._kinds_of)
        for inner in layers_of(module):
            if self.calls.hooks.key_of(inner.module) in hooked:
                continue
            full = f"{prefix}{name}" + ("" if inner.name == ROOT else f".{inner.name}")
            # One that takes another's place is a layer of its own, with gradients of its own.
            name_in_model = free_name(full, {x.name for x in self.layers})
            layer = self.calls.hooks.layer(name_in_model, inner.module)
            self.capture.name_layers([layer.name])
            log.info("added: %s (%s) was created during the run", layer.name, layer.type)
            self.layers += (layer,)
            self._kinds_of[layer.key] = self.kinds
            self.calls.subscribe(self, [layer])
            for own, parameter in own_parameters(layer.module).items():
                self._add_parameter(layer.module, own, parameter)

    def _add_parameter(self, owner: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        layer = next((x for x in self.layers if x.module is owner), None)
        if PARAM_GRAD not in self.kinds or layer is None or parameter is None:
            return
        if self._is_running() and not is_lazy(parameter):
            self.gradients.watch_parameter(layer, name, parameter)

    def _is_running(self) -> bool:
        return self.sink.open and self.gradients.watcher.open_calls > 0

    def needs_begin(self, layer: Layer) -> bool:
        """Whether the inputs of a layer are recorded, which it may change."""
        return not self._kinds_of[layer.key].isdisjoint((INPUT, INPUT_GRAD))

    def on_tensor(self, layer: Layer, number: int, output: Tensor) -> bool:
        """Record and watch the output of a call, in less time than a small module takes."""
        kinds = self._kinds_of[layer.key]
        watched = OUTPUT_GRAD in kinds
        if output.is_nested or (watched and not self.gradients.has_whole_share(output)):
            return False
        if self.sink.open and number:
            if OUTPUT in kinds:
                self.sink.store(RecordKey(layer, number, OUTPUT, OUTPUT), output)
            if watched:
                key = RecordKey(layer, number, f"{OUTPUT}.grad", OUTPUT_GRAD)
                if self.gradients.watcher.can_watch(key, output):
                    self.gradients.watcher.watch(key, output)
        return True

    def before_call(self, call: ModuleCall) -> OpenCall | None:
        """Record and watch the inputs of a call."""
        if not self.sink.open or not call.number:
            return None
        state = OpenCall(counted=not call.has_returned)
        if state.counted:
            self._count_open(1)
        if not self._follows_gradients and INPUT not in self._kinds_of[call.layer.key]:
            return state
        try:
            with DisableTorchFunctionSubclass():  # a subclass must only see the model
                self._record_input(call, state)
        except BaseException:
            self.abandon_call(call, state)
            raise
        return state

    def after_call(self, call: ModuleCall, state: OpenCall | None) -> None:
        """Record and watch the outputs of a call."""
        if state is None:
            return
        self._close(state)
        try:
            if self.sink.open:
                with DisableTorchFunctionSubclass():
                    self._record_output(call, state)
        finally:
            self.abandon_call(call, state)

    def abandon_call(self, call: ModuleCall, state: OpenCall | None) -> None:
        """Forget a call that was ended by an interrupt or by an error of hookscope."""
        if state is not None:
            self._close(state)
            if state.gradients is not None:
                self.gradients.abandon_call(state.gradients)

    def _count_open(self, change: int) -> None:
        with self._counting:
            self.gradients.watcher.open_calls += change

    def _close(self, state: OpenCall) -> None:
        if state.counted:
            state.counted = False
            self._count_open(-1)

    def _record_input(self, call: ModuleCall, state: OpenCall) -> None:
        kinds = self._kinds_of[call.layer.key]
        if INPUT in kinds:
            self._store(call, INPUT, (call.args, call.kwargs))
        if self._follows_gradients:
            state.gradients = CallGradients()
            self.gradients.begin_call(call, state.gradients, inputs=INPUT_GRAD in kinds)

    def _record_output(self, call: ModuleCall, state: OpenCall) -> None:
        kinds, gradients = self._kinds_of[call.layer.key], state.gradients
        if gradients is not None:
            self.gradients.write_back_clones(call, gradients)
        if call.failed and kinds:
            key = RecordKey(call.layer, call.number, OUTPUT, OUTPUT)
            self.sink.mark_absent(key, "the call raised an error")
        elif OUTPUT in kinds:
            self._store(call, OUTPUT, call.output)
        if STATE in kinds and not call.failed and isinstance(call.module, nn.RNNBase):
            self._store_states(call)
        if gradients is None:
            return
        self.gradients.close_inputs(call, gradients)
        if OUTPUT_GRAD in kinds and not call.failed:
            if OUTPUT not in kinds:
                self._mark_opaque(call, OUTPUT, OUTPUT_GRAD, call.output)
            self.gradients.watch_outputs(call)
        self.gradients.end_call(call, gradients)

    def _store(self, call: ModuleCall, kind: str, value: Any) -> None:
        """Store a clone of every tensor in ``value``."""
        for path, tensor in walk(value, caches=self.caches):
            self.sink.store(RecordKey(call.layer, call.number, what_of(kind, path), kind), tensor)
        self._mark_opaque(call, kind, kind, value)

    def _store_states(self, call: ModuleCall) -> None:
        """Store the states of a recurrent layer at each step, and its gates with operators."""
        assert isinstance(call.module, nn.RNNBase)
        found = recurrent_states(call.module, call.args, call.kwargs, call.output)
        if found.reason:
            key = RecordKey(call.layer, call.number, STATE, STATE)
            self.sink.mark_absent(key, found.reason)
        kept = {STATE: found.states, GATE: found.gates if OP in self.kinds else {}}
        for kind, tensors in kept.items():
            for name, tensor in tensors.items():
                self.sink.store(RecordKey(call.layer, call.number, name, kind), tensor)

    def _check_recurrent(self) -> None:
        """Raise RequestError if states are wanted and no chosen layer has some."""
        if STATE in self.kinds and not any(isinstance(x.module, nn.RNNBase) for x in self.layers):
            raise RequestError(
                "No selected layer is nn.LSTM, nn.GRU or nn.RNN, and only these have states.",
                "Leave state out of --what, or select such a layer with --layer or --type LSTM.",
            )

    def store_edited(
        self, layer: Layer, call: int, what: str, kind: str, before: Tensor, after: Tensor
    ) -> None:
        """Store a tensor before an edit, and after it unless it is recorded anyway."""
        stored = [(UNEDITED, before)]
        if kind not in self._kinds_of.get(layer.key, ()):
            stored.append(("", after))
        for mark, tensor in stored:
            self.sink.store(RecordKey(layer, call, what + mark, kind + mark), tensor)

    def _mark_opaque(self, call: ModuleCall, what: str, kind: str, value: Any) -> None:
        """Note objects that may contain tensors, and an output without any tensor."""
        opaque = opaque_types(value, caches=self.caches and kind in (INPUT, OUTPUT))
        key = RecordKey(call.layer, call.number, what, kind)
        for name in opaque:
            self.sink.mark_absent(
                key, f"a {name} object, which hookscope does not search for tensors"
            )
        if what == OUTPUT and not opaque and next(walk(value, caches=True), None) is None:
            self.sink.mark_absent(key, "no tensor was returned")
