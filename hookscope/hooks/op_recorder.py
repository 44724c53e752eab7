"""Records the results of the PyTorch functions that a model calls.

A function mode gets the calls as they were written: ``x + y``, ``torch.flatten``, ``F.gelu``. Calls
within such a function, those of the loss and those of the backward pass are not recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import GetSetDescriptorType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.files.signal_safety import (
    SignalSafeContext,
    signal_safe_contextmanager,
    uninterrupted,
)
from hookscope.hooks.attention_weights import AttentionTracker, version_counter
from hookscope.hooks.hook_set import as_hook, depth_readers, hook_depth
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ArgumentSink
from hookscope.hooks.torch_state import FunctionMode, inside_backward
from hookscope.results.records import key_of
from hookscope.specs.tensor_key import ATTENTION, OP, OP_GRAD
from hookscope.tensors.nested import walk
from hookscope.tensors.torch_internals import OpOverload, OpOverloadPacket

# Python's names of operators that have another name in PyTorch.
_DUNDER = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "invert": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_ALIASES = {"rsub": "sub", "numpy_T": "T"}
_OPERATORS = {"add", "sub", "mul", "div", "pow", "matmul", *_DUNDER}

# Attributes of a tensor that are computations.
_COMPUTED = {"T", "mT", "H", "mH", "real", "imag"}

# A module from one of these without children is an operator: its result is its output.
_BUILDING_BLOCKS = ("torch.nn.", "torch.ao.nn.", "hookscope.sources.torchscript.module_builder.")


def plain_name(function: Any) -> str:
    """The operator's name without overload, namespace or underscores; empty without an operator.

    >>> import torch
    >>> [plain_name(f) for f in (torch.Tensor.__iadd__, torch.ops.aten.flatten.using_ints)]
    ['add_', 'flatten']
    >>> plain_name(torch.Tensor.shape.__get__)
    ''
    """
    if isinstance(function, OpOverload):
        function = function.overloadpacket
    if isinstance(function, OpOverloadPacket):
        return _ALIASES.get(str(function.__name__), str(function.__name__))
    owner = getattr(function, "__self__", None)
    if isinstance(owner, GetSetDescriptorType | property):
        name = getattr(owner, "__name__", "")
        return name if function.__name__ == "__get__" and name in _COMPUTED else ""
    name = getattr(function, "__name__", "")
    special = name.startswith("__") and name.endswith("__")
    return _of_dunder(name[2:-2]) if special else _ALIASES.get(name, name)


def _of_dunder(name: str) -> str:
    for mark, end in (("i", "_"), ("r", "")):
        if name.removeprefix(mark) in _OPERATORS and name not in _OPERATORS:
            return _DUNDER.get(name[1:], name[1:]) + end
    return _DUNDER.get(name, name)


def is_building_block(module: nn.Module) -> bool:
    """Whether a module, before it was scripted or exported, is one of PyTorch's operators."""
    kind = type(module)
    origin = getattr(kind, "_hookscope_class", f"{kind.__module__}.{kind.__qualname__}")
    return origin.startswith(_BUILDING_BLOCKS) and not list(module.children())


@dataclass
class _Frame:
    """An open call of a module, inside ``depth`` hooks, and how often it used each operator."""

    layer: Layer
    call: int
    block: bool
    depth: int
    uses: Counter[str] = field(default_factory=Counter)

    def next(self, name: str) -> str:
        """The name of the next use of an operator: ``add``, ``add:2``, ..."""
        self.uses[name] += 1
        return name if self.uses[name] == 1 else f"{name}:{self.uses[name]}"


class _ThreadState(threading.local):
    """The open calls of this thread, and the function mode that is enabled."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.mode: FunctionMode | None = None


class _Mode(TorchFunctionMode):
    def __init__(self, recorder: OpRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is disabled
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        try:
            return self._recorder.call(func, args, kwargs or {})
        except BaseException as error:  # the function's own: its traceback is as without the mode
            while (trace := error.__traceback__) and trace.tb_frame.f_globals is globals():
                error.__traceback__ = trace.tb_next
            raise


def is_graph(model: nn.Module) -> bool:
    """Whether a model is one of an ONNX file: functions of torch that it calls compute nothing."""
    return bool(getattr(model, "_hookscope_is_graph", False))


@signal_safe_contextmanager
def record_ops(recorder: Recorder) -> Iterator[list[dict[str, Any]]]:
    """Let ``recorder``, which is entered before, record operators and attention in the block.

    Yields the list that will hold the metadata of attention.
    """
    if not recorder.kinds & {OP, OP_GRAD, ATTENTION}:
        yield []
        return
    with OpRecorder(recorder) as op_recorder:
        yield op_recorder.attention_metadata


class OpRecorder(CallSubscriber, SignalSafeContext["OpRecorder"]):
    """Records operators for a recorder while the ``with`` block runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.attention_metadata: list[dict[str, Any]] = []
        self._ops = bool(recorder.kinds & {OP, OP_GRAD}) and not is_graph(recorder.model)
        self._attention = AttentionTracker() if ATTENTION in recorder.kinds else None
        self._chosen = {layer.key for layer in recorder.layers}
        self._thread = _ThreadState()

    def _enter(self) -> OpRecorder:
        # First: the results of the model's own hooks, such as those of weight_norm, belong to the
        # call.
        calls = self.recorder.calls
        every = [calls.hooks.layer(x.name, x.module, x.aliases) for x in layers_of(calls.model)]
        calls.subscribe(self, every, first=True)
        depth_readers.add(self)
        return self

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.recorder.calls.unsubscribe(self)
        depth_readers.discard(self)
        self._thread.frames.clear()
        self._leave_mode(traceback)  # after Ctrl-C PyTorch called no hook of the module

    def before_call(self, call: ModuleCall) -> _Frame:
        """Watch the functions that a call uses."""
        outside = hook_depth() - 1  # of the hook that this is
        frame = _Frame(call.layer, call.number, is_building_block(call.layer.module), outside)
        self._thread.frames.append(frame)
        if self._thread.mode is None and not call.recomputed:
            self._enter_mode()
        return frame

    def after_call(self, call: ModuleCall, frame: _Frame) -> None:
        """Watch the functions of the surrounding call again, if there is one."""
        self._close(frame)
        if not self._thread.frames:
            self._leave_mode()

    def abandon_call(self, call: ModuleCall, frame: _Frame) -> None:
        """Forget a call that an interrupt ended."""
        self._close(frame)
        mode = self._thread.mode
        # A mode that the caller enabled since must stay; then ours ends with the recording.
        if not self._thread.frames and mode is not None and mode.is_innermost:
            self._leave_mode()

    def _close(self, frame: _Frame) -> None:
        frames = self._thread.frames
        if any(other is frame for other in frames):
            while frames.pop() is not frame:
                pass

    @uninterrupted
    def _enter_mode(self) -> None:
        mode = FunctionMode(_Mode(self))
        mode.__enter__()
        self._thread.mode = mode

    @uninterrupted
    def _leave_mode(self, traceback: TracebackType | None = None) -> None:
        mode, self._thread.mode = self._thread.mode, None
        if mode is not None:
            mode.__exit__(None, None, traceback)

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function of PyTorch, and record its result if the model itself called it."""
        frames = self._thread.frames
        name = plain_name(function)
        idle = not name or not frames or not frames[-1].call
        if idle or hook_depth() > frames[-1].depth or inside_backward():
            return function(*args, **kwargs)
        records = self._ops and not frames[-1].block and frames[-1].layer.key in self._chosen
        if not records and self._attention is None:
            return function(*args, **kwargs)
        # Referenced, so that no id is reused.
        arguments = [tensor for _, tensor in walk((args, kwargs), whole=True)]
        given = {id(tensor): version_counter(tensor) for tensor in arguments}
        sink = self.recorder.sink
        if records and isinstance(sink, ArgumentSink):
            outs = {id(tensor) for _, tensor in walk(kwargs.get("out"), whole=True)}
            read = [tensor for tensor in arguments if id(tensor) not in outs]
            as_hook(sink.before_op, read, (args, kwargs))
        result = function(*args, **kwargs)
        if records:
            shown = args[0] if name == "setitem" else result
            as_hook(
                self._record_result, frames[-1], name, shown, given, kwargs.get("inplace") is True
            )
        if self._attention is not None:
            place = next((f for f in reversed(frames) if not f.block), frames[0])
            as_hook(self._record_attention, place, name, function, args, kwargs, result)
        return result

    def _record_result(
        self,
        frame: _Frame,
        name: str,
        result: Any,
        given: dict[int, int | None],
        inplace: bool,
    ) -> None:
        """Record the tensors of ``result``, without arguments that were not changed."""
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
            self._store(frame, what, tensor)

    def _store(self, frame: _Frame, what: str, tensor: Tensor) -> None:
        """Record a tensor, or watch its gradient.

        No clone is needed: a hook on the tensor gets the gradient at its current value.
        """
        sink = self.recorder.sink
        if not sink.open:
            return
        if OP in self.recorder.kinds:
            for path, part in walk(tensor):
                name = ".".join((what, *path))
                sink.store(RecordKey(frame.layer, frame.call, name, OP), part)
        if OP_GRAD in self.recorder.kinds:
            key = RecordKey(frame.layer, frame.call, f"{what}.grad", OP_GRAD)
            watcher = self.recorder.gradients.watcher
            if watcher.can_watch(key, tensor):
                watcher.watch(key, tensor)

    def _record_attention(self, frame: _Frame, *called: Any) -> None:
        """Record the weights of attention, or why there are none, of a call in ``frame``."""
        assert self._attention is not None
        for finding in self._attention.find(*called):
            if frame.layer.key in self._chosen:
                layer, call, what = frame.layer, frame.call, frame.next(ATTENTION)
                key = RecordKey(layer, call, what, ATTENTION)
                if finding.weights is None:
                    self.recorder.sink.mark_absent(key, finding.reason)
                    continue
                self.recorder.sink.store(key, finding.weights)
                self.attention_metadata.append(
                    {"key": key_of(layer.name, call, what), **finding.to_json()}
                )


def _is_changed(tensor: Tensor, before: int | None, name: str, inplace: bool) -> bool:
    if before is None:  # under inference_mode only the call shows it
        return inplace or name == "setitem" or (name.endswith("_") and name != "requires_grad_")
    return tensor._version != before
