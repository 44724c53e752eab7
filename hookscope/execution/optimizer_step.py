"""One real step of an optimizer: what it was given, what it changed, and everything put back."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, HookscopeError, RequestError
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import submodule
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet
from hookscope.hooks.user_hooks.hook_binding import attach_user_hooks
from hookscope.results.records import Record
from hookscope.sources import arguments
from hookscope.specs.choices import OPTIMIZERS, STEP_HOOKS
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.record_kinds import PARAM_GRAD, PARAM_UPDATE
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.interrupts import signal_safe_contextmanager


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by name, with its arguments settled."""

    name: str
    kind: type[torch.optim.Optimizer]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of ``parameters``.

        Raises:
            RequestError: torch refuses an argument.
        """
        try:
            return self.kind(parameters, **self.arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            shown = arguments.format_arguments(self.arguments)
            raise RequestError(
                f"{self.kind.__name__} refuses {shown}: {end_sentence(str(error))}",
                "Give another --lr or --opt-arg.",
            ) from error


def resolve_optimizer(
    name: str, lr: float | None, opt_args: Mapping[str, Any] | None
) -> OptimizerSpec:
    """Return the optimizer that ``name`` means, its arguments read by their annotations.

    Raises:
        RequestError: there is no such optimizer or argument, or a value cannot be read.

    Example:
        >>> resolve_optimizer("sgd", 0.1, {"momentum": 0.9}).arguments
        {'momentum': 0.9, 'lr': 0.1}
    """
    if name not in OPTIMIZERS:
        listing = f"The optimizers are {', '.join(OPTIMIZERS)}."
        near = did_you_mean(name, OPTIMIZERS)
        raise RequestError(f"There is no optimizer called {name!r}.", f"{near} {listing}".strip())
    kind: type[torch.optim.Optimizer] = getattr(torch.optim, OPTIMIZERS[name])
    known = [each for each in inspect.signature(kind).parameters if each != "params"]
    given = dict(opt_args or {})
    for key in given:
        if key not in known:
            near = did_you_mean(key, known) or f"It takes {', '.join(known)}."
            raise RequestError(f"{kind.__name__} takes no argument {key!r}.", near)
    if lr is not None and not math.isfinite(lr):
        raise RequestError(f"{lr} is no learning rate.", "Give a finite number as --lr.")
    if lr is not None and "lr" in given:
        raise RequestError("The learning rate is given twice.", "Leave out --opt-arg lr.")
    settled = arguments.convert_arguments(kind, given)
    return OptimizerSpec(name, kind, settled if lr is None else settled | {"lr": lr})


def take_step(
    prepared: Prepared, recorder: Recorder, measure: Objective, rule: OptimizerSpec
) -> dict[str, Any]:
    """Run forward, backward and one step of the optimizer, within an open recording.

    Every parameter that requires grad is stepped. Into the capture go, for those of the chosen
    layers, the gradient and the update: the value after the step minus the one before.

    Returns:
        What the metadata tell of it: ``loss`` and ``optimizer``.

    Raises:
        LossError, ForwardError: as for gradients.
        RequestError: nothing can be stepped, or torch refuses an argument.
    """
    parameters = [p for p in prepared.module.parameters() if p.requires_grad]
    if not parameters:
        raise RequestError(
            f"{prepared.loaded.word} has no parameter that requires grad, so there is nothing to"
            " step.",
            "hookscope grads shows the gradient at its input.",
        )
    optimizer = rule.build(parameters)
    described = differentiate(prepared, recorder, measure)
    values: dict[Tensor, Tensor] = {}
    updates: list[tuple[Record, Tensor]] = []

    def before(*_: object) -> None:
        values.update({parameter: parameter.detach().clone() for parameter in parameters})

    def after(*_: object) -> None:
        gradients = [one for one in recorder.capture.records if one.kind == PARAM_GRAD]
        for record in gradients:
            parameter = _parameter_of(prepared.module, record)
            updates.append((record, parameter.detach() - values[parameter]))

    with _put_back(values), HookSet(prepared.module) as outer:
        outer.around_step(optimizer, before)
        own = prepared.plan.hooks_of(STEP_HOOKS)
        with attach_user_hooks(prepared.module, own, recorder, optimizer):
            outer.around_step(optimizer, None, after)  # the update is what user hooks leave
            _step(optimizer, rule)
    for record, update in updates:
        _put_update(recorder.capture, record, update)
    _demand_room(recorder)
    settings = {key: _plain(value) for key, value in optimizer.defaults.items()}
    described["optimizer"] = {"name": rule.name, "class": rule.kind.__name__, "arguments": settings}
    return described


@signal_safe_contextmanager
def _put_back(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Give parameters their values back after the block, in which ``values`` is filled."""
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values.items():
                parameter.copy_(value)


def _step(optimizer: torch.optim.Optimizer, rule: OptimizerSpec) -> None:
    try:
        optimizer.step()
    except HookscopeError:
        raise
    except Exception as error:
        shown = arguments.format_arguments(rule.arguments)
        said = str(error) or type(error).__name__
        raise RequestError(
            f"{rule.kind.__name__} with {shown} cannot step this model: {end_sentence(said)}",
            "Give another --optimizer or --opt-arg.",
        ) from error


def _parameter_of(model: nn.Module, record: Record) -> Tensor:
    owner = submodule(model, record.module)
    assert owner is not None
    return owner.get_parameter(record.what.removesuffix(".grad"))


def _put_update(capture: Capture, record: Record, update: Tensor) -> None:
    capture.put(
        update,
        module=record.module,
        type=record.type,
        call=record.call,
        what=f"{record.what.removesuffix('.grad')}.update",
        kind=PARAM_UPDATE,
        aliases=record.aliases,
        weight_norm=record.weight_norm,
    )


def _demand_room(recorder: Recorder) -> None:
    limit = recorder.sink.max_bytes
    if limit is not None and recorder.capture.nbytes > limit:
        raise CheckFailed(
            f"The gradients and updates take {recorder.capture.nbytes:,} bytes, and the limit is"
            f" {limit:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )


def _plain(value: Any) -> Any:
    """A setting of an optimizer as JSON can hold it."""
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
