"""Runs of a model that are compared: the values of one are stored, those of the next passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.execution.forward import forward
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.specs.tensor_key import OP, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode, without_grad
from hookscope.tensors.nested import as_dense

# Functions that compute nothing: the value was made before, where it may not be seen.
_VIEWS = {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze"}
_VIEWS |= {"unsqueeze", "transpose", "permute", "movedim", "contiguous", "expand", "getitem"}
_VIEWS |= {"split", "chunk"}
_UNSET = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"}  # memory as it was


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


def stored_values(prepared: Prepared, objective: Objective | None = None) -> dict[Place, Tensor]:
    """Run a model, and return a copy of each value in the order in which they were made."""
    values: dict[Place, Tensor] = {}

    def keep(place: Place, tensor: Tensor) -> None:
        values[place] = tensor.clone()

    run_values(prepared, keep, objective)
    return values
