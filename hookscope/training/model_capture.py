"""Records chosen calls of the models of a program in one capture."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from hookscope.files.words import bytes_text
from hookscope.hooks.capture import Capture
from hookscope.hooks.hook_set import LastingHooks
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import ModuleCall, RecordKey, what_of
from hookscope.hooks.recorder import OpenCall, Recorder
from hookscope.hooks.tensor_sink import CaptureSink, TensorSink
from hookscope.results.records import Coverage
from hookscope.specs.tensor_key import INPUT, OUTPUT, PARAM_GRAD
from hookscope.tensors.nested import walk
from hookscope.training.called_models import RootCall
from hookscope.training.hooked_models import CallGate, HookedModel, HookedModels
from hookscope.training.script_messages import report_fault

DEFAULT_LIMIT = 2_000_000_000  # bytes; they are held until the program ends
_order = itertools.count()


@dataclass(eq=False)
class Kept:
    """A tensor that is recorded, until the program has ended."""

    order: int
    key: RecordKey
    tensor: Tensor
    weight_norm: float | None
    root_call: int


class ByteBudget:
    """How many bytes may still be recorded, for all models together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.exceeded_at = ""  # the layer

    def take(self, key: RecordKey, tensor: Tensor) -> bool:
        """Whether a tensor may be recorded."""
        size = tensor.numel() * tensor.element_size()
        if self.exceeded_at or self.used + size > self.limit:
            self.exceeded_at = self.exceeded_at or key.layer.title
            return False
        self.used += size
        return True

    def give_back(self, tensor: Tensor) -> None:
        """Count a tensor no more, which was dropped."""
        self.used -= tensor.numel() * tensor.element_size()


class ModelSink(CaptureSink):
    """Keeps the tensors of the chosen calls of one model, and those of its last call."""

    def __init__(self, gate: CallGate, budget: ByteBudget) -> None:
        super().__init__()
        self.gate = gate
        self.budget = budget
        self.kept: list[Kept] = []
        self._root_calls: dict[tuple[str, int], int] = {}  # of each call of a layer

    def note_call(self, layer: Layer, number: int) -> None:
        """Note that a call of a layer belongs to the call of the model."""
        if not self.budget.exceeded_at:
            self._root_calls[layer.name, number] = self.gate.number

    def forget_last(self) -> None:
        """Drop the call that was the last so far, unless it was chosen by its number."""
        choice = self.gate.choice
        if choice.last:
            for one in self.kept:
                if one.root_call not in choice:
                    self.budget.give_back(one.tensor)
            self.kept = [one for one in self.kept if one.root_call in choice]
            # Gradients that come later belong to no call that is kept.
            self._root_calls = {key: n for key, n in self._root_calls.items() if n in choice}

    def _store_clone(
        self, key: RecordKey, tensor: Tensor, weight_norm: float | None = None
    ) -> Tensor:
        # A parameter has the gradient of a backward pass, not of a call.
        number = key.call if key.kind == PARAM_GRAD else self._root_call_of(key)
        choice = self.gate.choice
        if not number or not (choice.last or number in choice):
            return tensor
        if not self.budget.take(key, tensor):
            return tensor
        clone = tensor.clone()
        self.kept.append(Kept(next(_order), key, clone, weight_norm, number))
        return clone

    def _root_call_of(self, key: RecordKey) -> int:
        """The call of the model in which a value was computed, or the value of a gradient."""
        if self.gate.is_open and not key.kind.endswith(".grad"):
            self.note_call(key.layer, key.call)
        return self._root_calls.get((key.layer.name, key.call), 0)


class ModelRecorder(Recorder):
    """Records the layers of one model during chosen calls; it never raises into the program.

    The hooks stay until the program ends, so that the calls of each layer are counted from 1.
    """

    hooks_class = LastingHooks

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        kinds: Iterable[str],
        gate: CallGate,
        sink: TensorSink,
    ) -> None:
        super().__init__(model, layers, kinds, sink=sink, caches=True)
        self._gate = gate

    def on_tensor(self, layer: Layer, number: int, output: Tensor) -> bool:
        """Record the output of a call, in less time, if its model's call is chosen."""
        if self._gate.is_open:
            try:
                self._note(layer, number)
                return super().on_tensor(layer, number, output)
            except Exception as error:
                self._fail(error)
        return True

    def on_return(self, call: ModuleCall) -> None:
        """Record a call whose inputs are not recorded, if its model's call is chosen."""
        if self._gate.is_open:
            try:
                self._note(call.layer, call.number)
                super().on_return(call)
            except Exception as error:
                self._fail(error)

    def before_call(self, call: ModuleCall) -> OpenCall | None:
        """Record the inputs of a call, if its model's call is chosen."""
        if not self._gate.is_open:
            return None
        try:
            self._note(call.layer, call.number)
            return super().before_call(call)
        except Exception as error:
            self._fail(error)
            return None

    def after_call(self, call: ModuleCall, state: OpenCall | None) -> None:
        """Record the outputs of a call."""
        try:
            super().after_call(call, state)
        except Exception as error:
            self._fail(error)

    def _note(self, layer: Layer, number: int) -> None:
        if isinstance(self.sink, ModelSink):
            self.sink.note_call(layer, number)

    def _fail(self, error: Exception) -> None:
        self.sink.open = False
        report_fault("recording has ended early", error)


class RecordedModel(HookedModel):
    """A model whose chosen layers are recorded."""

    keeps_edited = True

    def __init__(
        self, name: str, module: nn.Module, gate: CallGate, kinds: set[str], budget: ByteBudget
    ) -> None:
        super().__init__(name, module, gate)
        self.kinds = kinds
        self.sink = ModelSink(gate, budget)

    @cached_property
    def observer(self) -> ModelRecorder:
        """The recorder of the layers."""
        return ModelRecorder(self.module, self.layers, self.kinds, self.gate, self.sink)

    def begin(self, call: RootCall) -> None:
        """Record the input of a model that can have no hooks."""
        super().begin(call)
        self.sink.forget_last()
        if INPUT in self.kinds:
            self._store_whole(call, INPUT, (call.args, call.kwargs))

    def end(self, call: RootCall, output: Any = None, *, failed: bool = False) -> None:
        """Record the output of a model that can have no hooks."""
        if OUTPUT in self.kinds and not failed:
            self._store_whole(call, OUTPUT, output)
        super().end(call)

    def _store_whole(self, call: RootCall, kind: str, value: Any) -> None:
        if self.whole is not None and self.gate.is_open:
            for path, tensor in walk(value):
                key = RecordKey(self.whole, call.number, what_of(kind, path), kind)
                self.sink.store(key, tensor)


class ModelCapture(HookedModels[RecordedModel]):
    """Records the chosen layers of all models of a program."""

    @cached_property
    def budget(self) -> ByteBudget:
        """How many bytes may still be recorded."""
        return ByteBudget(self.options.max_bytes or DEFAULT_LIMIT)

    def make(self, name: str, module: nn.Module) -> RecordedModel:
        """Return a model whose layers will be recorded."""
        gate = CallGate(self.choice)
        return RecordedModel(name, module, gate, self.options.kinds, self.budget)

    def result(self, metadata: dict[str, Any], capture: Capture | None = None) -> Capture:
        """Return what was recorded, once the hooks are removed; in ``capture`` if it is given."""
        models, capture = list(self.models.values()), Capture() if capture is None else capture
        capture.absent = tuple(absent for model in models for absent in model.sink.absent)
        capture.name_layers(dict.fromkeys(x.name for model in models for x in model.layers))
        kept = (one for model in models for one in model.sink.kept)
        for one in sorted(kept, key=lambda one: one.order):
            capture.put(one.tensor, **one.key.origin(), weight_norm=one.weight_norm)
        capture.coverage = Coverage.joined(model.sink.capture.coverage for model in models)
        capture.metadata = metadata
        return capture

    def unmet(self) -> Iterator[str]:
        """Yield a sentence about each thing that was asked for and did not come."""
        yield from super().unmet()
        if self.budget.exceeded_at:
            limit = bytes_text(self.budget.limit)
            yield f"recording ended at {self.budget.exceeded_at}: --max-bytes is {limit}."
