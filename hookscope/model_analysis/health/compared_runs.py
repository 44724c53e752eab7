"""Runs of a model that are compared: the values of one are stored, those of the next passed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor

from hookscope.execution.forward import forward
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import bit_identical
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.specs.tensor_key import INPUT, OP, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode, without_grad
from hookscope.tensors.nested import as_dense

# Functions that compute nothing: the value was made before, where it may not be seen.
_VIEWS = {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze"}
_VIEWS |= {"unsqueeze", "transpose", "permute", "movedim", "contiguous", "expand", "getitem"}
_VIEWS |= {"split", "chunk"}
_OUTSIDE = (int, float, complex, np.generic, np.ndarray)  # what Python and NumPy compute
_UNSET = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"}  # memory as it was

FROM_OUTSIDE = (
    "Python or another library makes them, such as os.urandom, random, NumPy or the time, or the"
    " model keeps them from an earlier call. Draw random numbers with PyTorch, which --seed sets."
)


class Place(NamedTuple):
    """Where a value is made; ``what`` is that of a ``Record``, such as ``output`` or ``add:2``."""

    module: str
    call: int
    what: str
    kind: str

    @property
    def function(self) -> str:
        """The function that returned the value; empty for the output of the module."""
        return self.what.partition(":")[0].partition(".")[0] if self.kind == OP else ""

    @property
    def source(self) -> str:
        """The end of a sentence about the module: the function that computed the value, if any."""
        return f" in {self.function}()" if self.function not in {"", *_VIEWS} else ""


Receive = Callable[[Place, Tensor], None]  # complex tensors as real ones of one dimension more


class _PassingSink(SinkBase):
    """Passes each value on and stores none."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    @without_grad
    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Pass a value or a gradient on."""
        place = Place(key.layer.name, key.call, key.what, key.kind)
        if place.function not in _UNSET and self.is_readable(key, tensor):
            value = as_dense(tensor.detach())
            self._receive(place, torch.view_as_real(value) if value.is_complex() else value)

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> None:
        """Pass a gradient on."""
        self.store(key, gradient)


def run_values(prepared: Prepared, receive: Receive, objective: Objective | None = None) -> None:
    """Run a model, and pass on the outputs of modules and functions as they are made.

    With an objective it is run backward, and the gradients at outputs and parameters follow.
    """
    kinds = {OUTPUT, OP} if objective is None else {OUTPUT, OP, OUTPUT_GRAD, PARAM_GRAD}
    recorder = Recorder(prepared.module, prepared.layers, kinds, sink=_PassingSink(receive))
    _run(prepared, recorder, objective)


def _run(prepared: Prepared, recorder: Recorder, objective: Objective | None = None) -> None:
    with (
        signal_safe(torch.inference_mode(False)),
        grad_mode(objective is not None),
        prepared.preserved(),
        recorder,
        record_ops(recorder),
    ):
        if objective is None:
            forward(prepared, recorder.capture)
        else:
            differentiate(prepared, recorder, objective)


class _ArgumentSink(SinkBase):
    """Keeps what the function, or the module, gets that makes the value at a place."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._latest: list[Any] = []
        self._unset: dict[int, ReferenceType[Tensor]] = {}
        self.arguments: list[Any] = []

    def before_op(self, arguments: Sequence[Tensor], call: Any) -> None:
        """Copy what a function gets; it may change its arguments in place."""
        args, kwargs = call
        own = args[1:] if self._place.function.endswith("_") else args  # what is overwritten
        given = [own, {name: value for name, value in kwargs.items() if name != "out"}]
        self._latest = [_copied(value) for value in _leaves(given) if not self._is_unset(value)]

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Keep the arguments if the value is the one that is looked for."""
        place = Place(key.layer.name, key.call, key.what, key.kind)
        if place.function in _UNSET:
            self._unset[id(tensor)] = ref(tensor)
        elif place == self._place and key.kind == OP:
            self.arguments = self._latest
        elif key.kind == INPUT and place[:2] == self._place[:2] and self._place.kind == OUTPUT:
            self.arguments.append(_copied(tensor))

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> None:
        """Pass over a gradient; none is asked for."""

    def _is_unset(self, value: Any) -> bool:
        known = self._unset.get(id(value))
        return known is not None and known() is value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (Tensor, *_OUTSIDE)):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


@without_grad
def _copied(value: Any) -> Tensor | bytes:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return np.asarray(value).tobytes()


def differs_before(run: Prepared, other: Prepared, place: Place) -> bool:
    """Whether a value that differs between two runs is made from others that differ already.

    If it is the first value of PyTorch's that differs, these come from Python or another library.
    """
    both = []
    for prepared in (run, other):
        sink = _ArgumentSink(place)
        recorder = Recorder(prepared.module, prepared.layers, {INPUT, OUTPUT, OP}, sink=sink)
        _run(prepared, recorder)
        both.append(sink.arguments)
    return len(both[0]) != len(both[1]) or not all(map(_is_equal, *both))


def _is_equal(a: Tensor | bytes, b: Tensor | bytes) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return bit_identical(a, b)
    return type(a) is type(b) and a == b


def stored_values(prepared: Prepared, objective: Objective | None = None) -> dict[Place, Tensor]:
    """Run a model, and return a copy of each value in the order in which they were made."""
    values: dict[Place, Tensor] = {}

    def keep(place: Place, tensor: Tensor) -> None:
        values[place] = tensor.clone()

    run_values(prepared, keep, objective)
    return values
