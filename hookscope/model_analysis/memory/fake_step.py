"""A training step, or inference, with fake tensors, which have shapes but no values."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope.errors import ForwardError, HookscopeError, LossError, RequestError
from hookscope.execution.forward import forward_error
from hookscope.execution.optimizer_step import OptimizerSpec
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.hooks.layers import layers_of, module_running, own_parameters
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.memory.allocations import AllocationLog, Peak
from hookscope.model_analysis.memory.fake_optimizer import FakeOptimizer
from hookscope.model_analysis.memory.output_cache import OutputCache
from hookscope.model_analysis.memory.storage_tracker import LayerClock, StorageTracker
from hookscope.results.memory import BACKWARD, FORWARD, MemoryParts
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.patterns import ROOT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors, walk
from hookscope.tensors.torch_internals import fake_tensors

_MEASURED = "measure it with torch.profiler.profile(profile_memory=True)."
LossFunction = Callable[[Any], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class StepRun:
    """What one run showed."""

    log: AllocationLog
    flops: int

    def peak(self) -> Peak:
        """Return the peak of the run."""
        return self.log.peak()

    def saved_by_layer(self) -> dict[str, int]:
        """Return the bytes that each layer saves for the backward pass."""
        saved: dict[str, int] = defaultdict(int)
        for one in self.log.allocations:
            saved[one.layer] += one.size if one.kind == "saved" else 0
        return saved

    def fixed(self) -> MemoryParts:
        """Return the bytes that a step of any batch needs."""
        sizes: dict[str, int] = defaultdict(int)
        for one in self.log.allocations:
            sizes[one.kind] += one.size
        kinds = ("parameters", "buffers", "gradients", "optimizer")
        return MemoryParts(**{kind: sizes[kind] for kind in kinds})


class FakeStep:
    """A step of a model without values, which can be run with any number of samples.

    It is made and run within a ``FakeTensorMode``, and changes the module that it gets.
    """

    def __init__(
        self,
        mode: Any,
        module: nn.Module,
        value: Any,
        loss: LossFunction | None,
        optimizer: OptimizerSpec | None,
        autocast: torch.dtype | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.module, self._operators = module, OutputCache(mode)
        _replace_values(module, dtype, self._operators)
        _set_mode(module, loss is not None)
        self.is_training = loss is not None
        floating = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        self.dtype = next(floating, torch.float32)
        self.layers = layers_of(self.module)
        self.batch = _batch_of(value)
        self._value, self._loss, self._autocast = value, loss, autocast
        self._optimizer = None if optimizer is None else self._made(optimizer)

    def run(self, batch: int | None = None, checkpoints: Sequence[str] = ()) -> StepRun:
        """Run a step with a number of samples, None for that of the input, and checkpoints."""
        tracker = self._tracker()
        args, kwargs = as_call(self._with_batch(batch or self.batch))
        for _, tensor in walk((args, kwargs)):
            tracker.register(tensor, "inputs")
        chosen = [layer.module for layer in self.layers if layer.name in checkpoints]
        registry = CallRegistry(self.module)
        with (
            _checkpointed(chosen),
            registry.subscribed(tracker.clock, self.layers),
            without_log_lines(),
        ):
            log = self._pass(tracker, args, kwargs)
        for parameter in self.module.parameters():
            parameter.grad = None
        return StepRun(log, tracker.flops)

    def _pass(self, tracker: StorageTracker, args: Any, kwargs: Any) -> AllocationLog:
        autocast = self._autocast
        casting = signal_safe(torch.autocast("cpu", autocast)) if autocast else nullcontext()
        tracker.phase = FORWARD
        try:
            with grad_mode(self._loss is not None), signal_safe(tracker):
                with casting:
                    output = self.module(*args, **kwargs)
                    if self._loss is None:
                        return tracker.log
                    loss, target = self._loss(output)
                tracker.mark(target, "inputs")
                tracker.mark_saved()
                tracker.phase = BACKWARD
                _check_differentiable(loss)
                loss.backward()
            held = (*self.module.parameters(), *(tensor for _, tensor in walk((args, kwargs))))
            tracker.mark([one.grad for one in held if one.grad is not None], "gradients")
            assert self._optimizer is not None
            # Here, so that the output, the loss and the gradients do not end before the step.
            return tracker.log.followed_by(self._optimizer.log())
        except HookscopeError:
            raise
        except (Exception, SystemExit) as error:
            raise _explained(self.module, (args, kwargs), error, tracker.phase) from error

    def _made(self, spec: OptimizerSpec) -> FakeOptimizer:
        parameters = {
            parameter: layer.name
            for layer in self.layers
            for parameter in own_parameters(layer.module).values()
            if parameter.requires_grad
        }
        if not parameters:
            raise RequestError(
                "The model has no parameter that requires grad, so there is nothing to update.",
                "Leave out --optimizer for the memory of inference.",
            )
        return FakeOptimizer(spec, parameters, self._operators)

    def _tracker(self) -> StorageTracker:
        """A tracker that knows the parameters and buffers."""
        tracker = StorageTracker(LayerClock(self.layers), self._operators)
        for layer in self.layers:
            for kind, held in (
                ("parameters", layer.module._parameters),
                ("buffers", layer.module._buffers),
            ):
                for tensor in held.values():
                    if tensor is not None:
                        tracker.register(tensor, kind, layer.name)
        return tracker

    def _with_batch(self, batch: int | None) -> Any:
        """The input as fake tensors, with a number of samples."""

        def make(path: object, tensor: Tensor) -> Tensor:
            shape = tuple(tensor.shape)
            if batch is not None and shape[:1] == (self.batch,):
                shape = (batch, *shape[1:])
            cast = self.dtype if tensor.is_floating_point() else tensor.dtype
            return torch.empty(shape, dtype=cast, requires_grad=tensor.requires_grad)

        return map_tensors(self._value, make)


def _set_mode(module: nn.Module, training: bool) -> None:
    try:
        module.train(training)
    except RequestError as error:  # an exported program
        raise RequestError(
            error.message, "Leave out --optimizer for the memory of inference, or name its code."
        ) from error


def _replace_values(model: nn.Module, dtype: torch.dtype | None, operators: OutputCache) -> None:
    """Replace parameters and buffers by fake ones, floating-point ones in ``dtype`` if given."""
    made: dict[int, Tensor] = {}  # a shared tensor stays shared
    for module in model.modules():
        held: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for members in held:
            for name, tensor in members.items():
                if not isinstance(tensor, Tensor) or (members is held[-1] and not tensor.is_meta):
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = _empty(tensor, dtype, operators)
                members[name] = made[id(tensor)]


def _empty(tensor: Tensor, dtype: torch.dtype | None, operators: OutputCache) -> Tensor:
    kind = dtype if dtype and tensor.is_floating_point() else tensor.dtype
    empty = operators.empty_like(tensor, kind)
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty


@signal_safe_contextmanager
def _checkpointed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Compute the activations of modules again in the backward pass of the block."""
    before = [(vars(module), vars(module).get("forward")) for module in modules]
    for module in modules:
        # Random states have no values here, so there is nothing to restore.
        options = {"use_reentrant": False, "preserve_rng_state": False}
        vars(module)["forward"] = partial(checkpoint, module.forward, **options)
    try:
        yield
    finally:
        for members, forward in before:
            if forward is None:
                del members["forward"]
            else:
                members["forward"] = forward


@signal_safe_contextmanager
def without_log_lines() -> Iterator[None]:
    """Keep PyTorch from logging the traceback of an operator that fails without values."""
    log = logging.getLogger(fake_tensors().__name__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _batch_of(value: Any) -> int | None:
    """The number of samples: the first length of the first argument, unless that is a list."""
    args, kwargs = as_call(value)
    first = next((one for one in (*args, *kwargs.values()) if one is not None), None)
    return len(first) if isinstance(first, Tensor) and first.ndim else None


def _check_differentiable(loss: Tensor) -> None:
    if not loss.requires_grad:
        raise LossError(
            "Nothing that the loss depends on requires grad, so there is no backward pass.",
            "Unfreeze a parameter, choose another --loss, or leave out --optimizer for inference.",
        )


def _explained(module: nn.Module, value: Any, error: BaseException, phase: str) -> HookscopeError:
    """The error of a pass without values, which fails where a model reads values."""
    fakes = fake_tensors()
    layer = module_running(module, error.__traceback__)
    where = "the model itself" if layer == ROOT else f"layer {layer}"
    message = end_sentence(str(error).strip().partition("\n")[0] or type(error).__name__)
    if isinstance(error, (fakes.DataDependentOutputException, fakes.DynamicOutputShapeException)):
        return ForwardError(
            f"What {where} computes depends on values ({error}), and this run has none.",
            layer,
            hint=f"The memory of data-dependent code is not known before it runs: {_MEASURED}",
        )
    if isinstance(error, AssertionError) and "targets" in message:  # detectors of torchvision
        return ForwardError(
            f"A training step of {where} needs targets, and this run has none: {message}",
            layer,
            hint=f"What a detector computes depends on the values of its targets: {_MEASURED}",
        )
    unsupported = isinstance(error, fakes.UnsupportedOperatorException)
    if unsupported or "no fake impl" in str(error) or "register_fake" in str(error):
        return ForwardError(
            f"An operator in {where} has no version for tensors without values: {message}",
            layer,
            hint="Write one for a custom operator with torch.library.register_fake.",
        )
    if any(sign in str(error) for sign in ("FakeTensor", "data pointer", ".numpy()")):
        return ForwardError(
            f"Code in {where} reads values, and this run has none: {message}",
            layer,
            hint="Replace the code that reads them, such as numpy() or a kernel that takes an"
            " address.",
        )
    return forward_error(module, value, error, during=phase)
