"""Sees each function of PyTorch that a model calls, and records what it returned.

A function mode shows the calls as they were written: ``x + y``, ``torch.flatten``, ``F.gelu``, and
those of scripted and exported models by their operators. What a function calls inside is not shown.
The mode is in force while a module of the model runs, and neither for the loss nor going back.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.ops.attention_weights import AttentionTracker, version_counter
from hookscope.hooks.ops.op_names import is_building_block, plain_name
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import FunctionMode, HookSet, as_hook, hook_depth, inside_backward
from hookscope.hooks.tensor_sink import RecordKey
from hookscope.results.records import key_of
from hookscope.specs.record_kinds import ATTENTION, OP, OP_GRAD
from hookscope.tensors.interrupts import (
    SignalSafeContext,
    signal_safe_contextmanager,
    uninterrupted,
)
from hookscope.tensors.nested import walk


@dataclass
class _Frame:
    """One call of a module that is under way, and how often each operator was used in it.

    ``depth`` tells inside how many hooks it was called: a hook may run a module, or a whole model.
    """

    layer: Layer
    call: int
    block: bool
    depth: int
    uses: Counter[str] = field(default_factory=Counter)

    def next(self, name: str) -> str:
        """The name of the next use of an operator: ``add``, ``add:2``, ..."""
        self.uses[name] += 1
        return name if self.uses[name] == 1 else f"{name}:{self.uses[name]}"


class _Here(threading.local):
    """What runs on this thread; ``mode`` ends the function mode that is in force."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.mode: FunctionMode | None = None


class _Mode(TorchFunctionMode):
    def __init__(self, watch: OpRecorder) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is not in force
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self._watch.call(func, args, kwargs or {})


@signal_safe_contextmanager
def record_ops(recorder: Recorder) -> Iterator[list[dict[str, Any]]]:
    """Let ``recorder`` keep operators and attention within the block, if these are of its kinds.

    Enter it after the recorder. Yields the list that will tell of attention what a file holds of
    it: ``key``, ``from`` (where its weights come from), ``difference`` and ``tolerance``.
    """
    if not recorder.kinds & {OP, OP_GRAD, ATTENTION}:
        yield []
        return
    with OpRecorder(recorder) as watch:
        yield watch.told


class OpRecorder(SignalSafeContext["OpRecorder"]):
    """Records operators for a recorder while the ``with`` block runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.told: list[dict[str, Any]] = []
        self._ops = bool(recorder.kinds & {OP, OP_GRAD})
        self._attention = AttentionTracker() if ATTENTION in recorder.kinds else None
        self._chosen = {layer.module for layer in recorder.layers}
        self._calls: Counter[nn.Module] = Counter()
        self._counting = threading.Lock()  # replicas of one model run on a thread each
        self._here = _Here()
        self._hooks = HookSet(recorder.model)

    def _enter(self) -> OpRecorder:
        with self._hooks.attaching() as hooks:
            for layer in layers_of(self.recorder.model):
                # First of all hooks before and last of all behind: what the model's own hooks
                # compute, those of weight_norm for example, is within the call.
                hooks.before(layer.module, partial(self._before, layer), first=True)
                hooks.after(layer.module, partial(self._after, layer), always=True)
        return self

    def _leave(self, *error: object) -> None:
        self._hooks.__exit__(None, None, None)
        self._here.frames.clear()
        self._leave_mode()  # after Ctrl-C no hook of the module was called

    def _before(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any) -> None:
        again = inside_backward()  # activation checkpointing: not a new call
        with self._counting:
            self._calls[layer.module] += not again
            call = 0 if again else self._calls[layer.module]
        outside = hook_depth() - 1  # of the hook that this is
        self._here.frames.append(_Frame(layer, call, is_building_block(layer.module), outside))
        if self._here.mode is None and not again:
            self._enter_mode()

    def _after(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        frames = self._here.frames
        if any(frame.layer is layer for frame in frames):
            while frames.pop().layer is not layer:  # of those inside it that Ctrl-C left behind
                pass
        if not frames:
            self._leave_mode()

    @uninterrupted
    def _enter_mode(self) -> None:
        mode = FunctionMode(_Mode(self))
        mode.__enter__()
        self._here.mode = mode

    @uninterrupted
    def _leave_mode(self) -> None:
        mode, self._here.mode = self._here.mode, None
        if mode is not None:
            mode.__exit__(None, None, None)

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function of PyTorch, and record its result if the model itself called it."""
        frames = self._here.frames
        name = plain_name(function)
        idle = not name or not frames or not frames[-1].call
        if idle or hook_depth() > frames[-1].depth or inside_backward():
            return function(*args, **kwargs)
        # Held, so that no id is used again.
        held = [tensor for _, tensor in walk((args, kwargs), whole=True)]
        given = {id(tensor): version_counter(tensor) for tensor in held}
        result = function(*args, **kwargs)
        if self._ops and not frames[-1].block and frames[-1].layer.module in self._chosen:
            shown = args[0] if name == "setitem" else result
            as_hook(self._keep, frames[-1], name, shown, given, kwargs.get("inplace") is True)
        if self._attention is not None:
            place = next((f for f in reversed(frames) if not f.block), frames[0])
            as_hook(self._look, place, name, function, args, kwargs, result)
        return result

    def _keep(
        self,
        frame: _Frame,
        name: str,
        result: Any,
        given: dict[int, int | None],
        inplace: bool,
    ) -> None:
        """Record the tensors of ``result``, less those given that are as they were."""
        changed = [
            id(tensor)
            for _, tensor in walk(result, whole=True)
            if id(tensor) in given and _is_changed(tensor, given[id(tensor)], name, inplace)
        ]
        if changed and name != "setitem" and not name.endswith("_"):
            name = f"{name}_"  # F.relu(x, inplace=True)
        every = walk(result, whole=True)
        new = [(p, x) for p, x in every if id(x) in changed or id(x) not in given]
        use = frame.next(name) if new else ""
        for path, tensor in new:
            what = ".".join((use, *path))
            self._keep_one(frame, what, tensor)

    def _keep_one(self, frame: _Frame, what: str, tensor: Tensor) -> None:
        """Record a tensor, or listen to it.

        No clone is handed on: a hook on the tensor itself gets the gradient with respect to the
        value that it has now, whatever is done to it in place afterwards.
        """
        sink = self.recorder.sink
        if not sink.open:
            return
        if OP in self.recorder.kinds:
            for path, part in walk(tensor):
                name = ".".join((what, *path))
                sink.keep(RecordKey(frame.layer, frame.call, name, OP), part)
        if OP_GRAD in self.recorder.kinds:
            slot = RecordKey(frame.layer, frame.call, f"{what}.grad", OP_GRAD)
            if sink.can_listen(slot, tensor):
                sink.listen(slot, tensor)

    def _look(self, frame: _Frame, *called: Any) -> None:
        """Record the weights of attention, or why there are none, of a call in ``frame``."""
        assert self._attention is not None
        for finding in self._attention.see(*called):
            if frame.layer.module in self._chosen:
                layer, call, what = frame.layer, frame.call, frame.next(ATTENTION)
                slot = RecordKey(layer, call, what, ATTENTION)
                if finding.weights is None:
                    self.recorder.sink.mark_absent(slot, finding.reason)
                    continue
                self.recorder.sink.keep(slot, finding.weights)
                self.told.append({"key": key_of(layer.name, call, what), **finding.to_json()})


def _is_changed(tensor: Tensor, before: int | None, name: str, inplace: bool) -> bool:
    if before is None:  # under inference_mode the call itself must tell
        return inplace or name == "setitem" or (name.endswith("_") and name != "requires_grad_")
    return tensor._version != before
