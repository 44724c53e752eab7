"""The step of an optimizer without values: its state, and what it allocates for a while."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.optimizer_step import OptimizerSpec
from hookscope.files.signal_safety import signal_safe
from hookscope.model_analysis.memory.allocations import PLACEHOLDER, AllocationLog
from hookscope.model_analysis.memory.output_cache import OutputCache
from hookscope.model_analysis.memory.storage_tracker import LayerClock, StorageTracker
from hookscope.results.memory import STEP
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import walk
from hookscope.tensors.torch_internals import disable_current_modes

_EARLIER_STEPS = 100  # RAdam allocates more from its sixth step on
_TAKES_SPARSE = (torch.optim.SGD, torch.optim.Adagrad)  # the others refuse such gradients


class FakeOptimizer:
    """An optimizer of parameters without values, of which the layers are given.

    Fused steps need a device that has them, so these run on fake tensors of the CPU. All others
    run on the meta device, which allocates the same in less time.
    """

    def __init__(
        self, spec: OptimizerSpec, parameters: Mapping[nn.Parameter, str], operators: OutputCache
    ) -> None:
        self._spec, self._layers, self._operators = spec, parameters, operators
        is_fused = bool(spec.arguments.get("fused"))
        self._device = "cpu" if is_fused else "meta"
        self._modes = nullcontext if is_fused else disable_current_modes
        self._logs: dict[tuple[torch.layout | None, ...], AllocationLog] = {}
        with self._modes():
            self._stand_ins = {one: nn.Parameter(self._stand_in(one)) for one in parameters}
            self._build()  # what it does not accept is said before the model runs

    def log(self) -> AllocationLog:
        """Return what a later step allocates, with the gradients that the parameters have now."""
        gradients = [parameter.grad for parameter in self._layers]
        key = tuple(None if gradient is None else gradient.layout for gradient in gradients)
        if key not in self._logs:
            with self._modes():
                for stand_in, gradient in zip(self._stand_ins.values(), gradients, strict=True):
                    stand_in.grad = None if gradient is None else self._stand_in(gradient)
                self._logs[key] = self._log_step()
        return self._logs[key]

    def _log_step(self) -> AllocationLog:
        optimizer = self._build()  # anew: Adagrad makes the state of all parameters here
        self._step(optimizer, self._tracker())
        for state in optimizer.state.values():
            if "step" in state:
                state["step"] += _EARLIER_STEPS
        tracker = self._tracker()
        for parameter, stand_in in self._stand_ins.items():
            for _, tensor in walk(list(optimizer.state.get(stand_in, {}).values())):
                tracker.register(tensor, "optimizer", self._layers[parameter])
        self._step(optimizer, tracker)
        return tracker.log

    def _build(self) -> torch.optim.Optimizer:
        return self._spec.build([*self._stand_ins.values()])

    def _tracker(self) -> StorageTracker:
        tracker = StorageTracker(LayerClock(()), self._operators)
        for parameter, stand_in in self._stand_ins.items():
            for tensor in (stand_in, stand_in.grad):
                if tensor is not None:
                    tracker.register(tensor, PLACEHOLDER, self._layers[parameter])
        return tracker

    def _step(self, optimizer: torch.optim.Optimizer, tracker: StorageTracker) -> None:
        tracker.phase = STEP
        with grad_mode(True), signal_safe(tracker):
            self._spec.step(optimizer)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        """Return a tensor like a parameter or a gradient, for the optimizer."""
        shape, dtype, device = tuple(tensor.shape), tensor.dtype, self._device
        if tensor.layout is torch.strided:
            return torch.empty_strided(shape, tensor.stride(), dtype=dtype, device=device)
        kind, arguments = self._spec.kind, self._spec.arguments
        if not issubclass(kind, _TAKES_SPARSE):
            return torch.empty(shape, dtype=dtype, device=device, layout=tensor.layout)
        if kind is not torch.optim.SGD or any(map(arguments.get, ("momentum", "weight_decay"))):
            raise RequestError(
                f"What {kind.__name__} allocates for sparse gradients depends on their values, and"
                " this run has none.",
                "Choose sgd without momentum and weight decay, or layers without sparse=True.",
            )
        return torch.empty(shape, dtype=dtype, device=device)  # plain SGD adds either in place
