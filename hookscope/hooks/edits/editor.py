"""Edits in force: the hooks that change values on their way forward, and gradients on theirs back.

Edits of values are entered before a recorder, so that it records what goes on; edits of gradients
after it, so that a gradient is edited first and then recorded on its way back.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.errors import EditError
from hookscope.hooks.edits.bound_edit import BoundEdit, apply_edit, is_editable
from hookscope.hooks.layers import Layer
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet, inside_backward, what_of
from hookscope.results.records import key_of
from hookscope.specs.record_kinds import INPUT, OUTPUT, OUTPUT_GRAD
from hookscope.tensors.clones import with_type_and_attributes
from hookscope.tensors.gradient_gate import carries_gradient, insert_gradient_gate
from hookscope.tensors.interrupts import SignalSafeContext
from hookscope.tensors.nested import TensorPath, map_tensors


class _Running(threading.local):
    """The numbers of the calls of each module that are under way on this thread."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[int]] = {}


class Editor(SignalSafeContext["Editor"]):
    """Carries edits out while the ``with`` block runs; afterwards no hook is left.

    Args:
        model: the model whose layers are edited.
        bounds: the edits, all of values or all of gradients, in the order in which those of one
            layer are applied.
        seed: the run's, for edits that draw random numbers.
        recorder: keeps what is edited as it was before and as it went on; None keeps nothing.

    Attributes:
        changed: by the position of an edit, the keys of the tensors that it changed.
    """

    def __init__(
        self,
        model: nn.Module,
        bounds: tuple[BoundEdit, ...],
        seed: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.bounds = bounds
        self.seed = seed
        self.recorder = recorder
        self.changed: dict[int, list[str]] = {bound.position: [] for bound in bounds}
        self._calls: dict[nn.Module, int] = {}
        self._running = _Running()
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._hooks = HookSet(model)

    def _enter(self) -> Editor:
        own: dict[Layer, list[BoundEdit]] = {}
        for bound in self.bounds:
            own.setdefault(bound.layer, []).append(bound)
        with self._hooks.attaching() as hooks:
            for layer, bounds in own.items():
                hooks.before(layer.module, partial(self._before, layer, bounds))
                hooks.after(layer.module, partial(self._after, layer, bounds), always=True)
        return self

    def _leave(self, *error: object) -> None:
        self._hooks.__exit__(None, None, None)

    def check_effect(self) -> None:
        """Demand that every edit changed something.

        Raises:
            EditError: names the first edit that did not, and why.
        """
        for position, keys in self.changed.items():
            if keys:
                continue
            first = next(bound for bound in self.bounds if bound.position == position)
            calls = self._calls.get(first.layer.module, 0)
            name = f"{first.layer.name} ({first.layer.type})"
            reason = f"{name} never ran"
            if calls:
                reason = f"no gradient came back to {name}"
            if calls and first.edit.call and first.edit.call > calls:
                reason = f"{name} was called {calls} time{'s' * (calls > 1)}"
            raise EditError(
                f"The edit {first.edit.word!r} changed nothing: {reason}.",
                "'hookscope capture' without edits shows which layers run, and how often.",
            )

    def _before(
        self,
        layer: Layer,
        bounds: list[BoundEdit],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        call = self._begin(layer)
        mine = [bound for bound in bounds if bound.concerns(INPUT, call)]
        return self._change(layer, call, INPUT, mine, (args, kwargs)) if mine else None

    def _begin(self, layer: Layer) -> int:
        """Number the call that begins; one that checkpointing runs again keeps its number."""
        again = inside_backward()
        with self._counting:
            call = self._calls.get(layer.module, 0) + (not again)
            self._calls[layer.module] = call
        if again and call > 1:
            raise EditError(
                f"Activation checkpointing runs {layer.name} again, and of its {call} calls it"
                " cannot be told which one that is.",
                "Turn checkpointing off, or edit a layer that is called once.",
            )
        self._running.calls.setdefault(layer.module, []).append(call)
        return call

    def _after(
        self,
        layer: Layer,
        bounds: list[BoundEdit],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        running = self._running.calls.get(layer.module)
        if not running:
            return None
        call = running.pop()
        if output is None:  # the module raised, or has nothing to give
            return None
        values = [bound for bound in bounds if bound.concerns(OUTPUT, call)]
        gradients = [bound for bound in bounds if bound.concerns(OUTPUT_GRAD, call)]
        if values:
            output = self._change(layer, call, OUTPUT, values, output)
        if gradients:
            output = map_tensors(output, partial(self._listen, layer, call, gradients))
        return output

    def _change(
        self, layer: Layer, call: int, kind: str, bounds: list[BoundEdit], value: Any
    ) -> Any:
        """The value with its tensors edited; its structure is that of ``value``."""
        pairs: list[tuple[str, Tensor, Tensor]] = []

        def change(path: TensorPath, tensor: Tensor) -> Tensor:
            what = what_of(kind, path)
            new = self._edited(bounds, tensor, key_of(layer.name, call, what))
            if new is not tensor:
                new = with_type_and_attributes(new, tensor)
                pairs.append((what, tensor, new))
            return new

        changed = map_tensors(value, change)
        if not pairs:
            raise EditError(
                f"The edit {bounds[0].edit.word!r} finds no floating-point tensor in the {kind} of"
                f" {layer.name} ({layer.type}).",
                "Edit a layer before or after it.",
            )
        if self.recorder is not None and not inside_backward():
            for what, old, new in pairs:
                self.recorder.keep_edited(layer, call, what, kind, old, new)
        return changed

    def _edited(
        self, bounds: list[BoundEdit], tensor: Tensor, key: str, activation: Tensor | None = None
    ) -> Tensor:
        """The tensor after all of the edits, in their order."""
        for bound in bounds:
            if is_editable(bound, tensor):
                tensor = apply_edit(bound, tensor, key, self.seed, activation)
                if key not in self.changed[bound.position]:
                    self.changed[bound.position].append(key)
        return tensor

    def _listen(
        self, layer: Layer, call: int, bounds: list[BoundEdit], path: TensorPath, tensor: Tensor
    ) -> Tensor:
        """A clone of an output; the gradient is edited between the clone and the output.

        So what is recorded at the clone, as a surrounding module's own output, is not edited yet.
        """
        # A copy: what the model does to its output in place must not reach the penalties l1 and l2.
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
        # With autograd as it is: a gradient that is differentiated again keeps its graph.
        new = self._edited(bounds, grad, key_of(layer.name, call, what), activation)
        if self.recorder is not None:
            self.recorder.keep_edited(layer, call, what, OUTPUT_GRAD, grad, new)
        return new
