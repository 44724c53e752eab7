"""One step of an optimizer: its gradients and updates. The parameters are restored after it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, HookscopeError, RequestError
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.capture import Capture
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import submodule
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.user_hooks import attach_user_hooks
from hookscope.results.records import Record
from hookscope.sources import arguments
from hookscope.specs.choices import OPTIMIZERS, STEP_HOOKS
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.tensor_key import PARAM_GRAD, PARAM_UPDATE
from hookscope.tensors.grad_mode import grad_mode


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by name, with its class and its arguments."""

    name: str
    kind: type[torch.optim.Optimizer]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of ``parameters``."""
        try:
            return self.kind(parameters, **self.arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            shown = arguments.format_arguments(self.arguments)
            raise RequestError(
                f"{self.kind.__name__} does not accept {shown}: {end_sentence(str(error))}",
                "Change --lr or --opt-arg.",
            ) from error

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step of an optimizer that was built from this."""
        try:
            optimizer.step()
        except HookscopeError:
            raise
        except Exception as error:
            shown = arguments.format_arguments(self.arguments)
            reason = str(error) or type(error).__name__
            raise RequestError(
                f"{self.kind.__name__} with {shown} failed on this model: {end_sentence(reason)}",
                "Change --optimizer or --opt-arg.",
            ) from error


def resolve_optimizer(
    name: str, lr: float | None, opt_args: Mapping[str, Any] | None
) -> OptimizerSpec:
    """Return the optimizer that ``name`` means, its arguments read by their annotations."""
    kind: type[torch.optim.Optimizer] = getattr(torch.optim, OPTIMIZERS[name])
    known = [key for key in inspect.signature(kind).parameters if key != "params"]
    chosen = dict(opt_args or {})
    for key in chosen:
        if key not in known:
            near = did_you_mean(key, known) or f"It takes {', '.join(known)}."
            raise RequestError(f"{kind.__name__} takes no argument {key!r}.", near)
    resolved = arguments.convert_arguments(kind, chosen)
    return OptimizerSpec(name, kind, resolved if lr is None else resolved | {"lr": lr})


def take_step(
    prepared: Prepared,
    recorder: Recorder,
    objective: Objective,
    spec: OptimizerSpec,
    max_bytes: int | None,
) -> dict[str, Any]:
    """Run forward, backward and one step of the optimizer, while ``recorder`` records.

    The capture gets the gradients of the chosen layers, and the updates: new minus old values.
    """
    parameters = [p for p in prepared.module.parameters() if p.requires_grad]
    if not parameters:
        raise RequestError(
            f"{prepared.loaded.spec} has no parameter that requires grad, so there is nothing to"
            " update.",
            "hookscope grads shows the gradient at its input.",
        )
    optimizer = spec.build(parameters)
    metadata = differentiate(prepared, recorder, objective)
    values: dict[Tensor, Tensor] = {}
    updates: list[tuple[Record, Tensor]] = []

    def before(*_: object) -> None:
        values.update({parameter: parameter.detach().clone() for parameter in parameters})

    def after(*_: object) -> None:
        gradients = [record for record in recorder.capture.records if record.kind == PARAM_GRAD]
        for record in gradients:
            parameter = _parameter_of(prepared.module, record)
            updates.append((record, parameter.detach() - values[parameter]))

    with _restored(values), HookSet(prepared.module) as outer:
        outer.around_step(optimizer, before)
        user_hooks = prepared.interventions.hooks_of(STEP_HOOKS)
        with attach_user_hooks(recorder.calls, user_hooks, recorder, optimizer):
            outer.around_step(optimizer, None, after)  # after the user hooks
            spec.step(optimizer)
    for record, update in updates:
        _put_update(recorder.capture, record, update)
    _check_size(recorder.capture, max_bytes)
    settings = {key: _json_value(value) for key, value in optimizer.defaults.items()}
    metadata["optimizer"] = {"name": spec.name, "class": spec.kind.__name__, "arguments": settings}
    return metadata


@signal_safe_contextmanager
def _restored(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Restore parameters after the block to ``values``, which the block fills."""
    try:
        yield
    finally:
        with grad_mode(False):
            for parameter, value in values.items():
                parameter.copy_(value)


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


def _check_size(capture: Capture, limit: int | None) -> None:
    if limit is not None and capture.nbytes > limit:
        raise CheckFailed(
            f"The gradients and updates take {capture.nbytes:,} bytes, more than the limit"
            f" of {limit:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )


def _json_value(value: Any) -> Any:
    """A setting of an optimizer as a JSON value."""
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
