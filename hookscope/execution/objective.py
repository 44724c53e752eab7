"""The loss of a run, or its gradient penalty, and the backward pass from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hookscope.execution.forward import backward, forward
from hookscope.execution.gradient_penalty import (
    FORMULA,
    check_dependence,
    explain_double_backward,
    gradient_penalty,
)
from hookscope.execution.losses.custom_loss import resolve_custom_loss
from hookscope.execution.losses.loss import Loss, compute_loss
from hookscope.execution.prepare import Prepared
from hookscope.hooks.recorder import Recorder
from hookscope.specs.losses import FORMULAS
from hookscope.specs.patterns import ROOT
from hookscope.specs.record_kinds import SCORE_GRAD
from hookscope.specs.request import LossRequest
from hookscope.tensors.input_clones import clone_preserving_strides, with_type_and_attributes
from hookscope.tensors.nested import TensorPath, as_call, map_tensors


@dataclass(frozen=True)
class Objective:
    """The loss that a run differentiates."""

    compute: Callable[[Prepared, Any], Loss]
    raw: bool = False
    penalty: str | None = None


def resolve_loss(request: LossRequest) -> Objective:
    """Return the objective for a request. The file of a custom loss is run here."""
    target, reduction, raw, penalty = (
        request.target,
        request.reduction,
        request.raw,
        request.penalty,
    )
    custom = resolve_custom_loss(request.loss, reduction, raw)
    if custom is not None:
        return Objective(
            lambda prepared, output: custom.compute(
                output, target, _value(prepared), prepared.loaded.categories
            ),
            raw,
            penalty,
        )
    name = request.name
    if penalty and name in FORMULAS and FORMULAS[name].reduction:
        reduction = "sum"

    def compute(prepared: Prepared, output: Any) -> Loss:
        nonlocal target
        categories = prepared.loaded.categories
        loss = compute_loss(
            name, output, target, reduction=reduction, raw=raw, categories=categories
        )
        if loss.classes is not None:  # later runs are compared with this one: same classes
            target = loss.classes
        return loss

    return Objective(compute, raw, penalty)


def differentiate(prepared: Prepared, recorder: Recorder, objective: Objective) -> dict[str, Any]:
    """Run the model forward and the loss, or its penalty, backward, while ``recorder`` records.

    The recorder's capture gets the output, attached to its graph.
    """
    capture = recorder.capture
    inputs: list[tuple[TensorPath, Tensor]] = []
    call = prepared.fresh_call()
    if objective.penalty:
        call = _requiring_grad(call, inputs)
    capture.output = forward(prepared, capture, call)
    loss = objective.compute(prepared, capture.output)
    metadata: dict[str, Any] = {"loss": _loss_entry(loss, objective.raw)}
    if not objective.penalty:
        backward(prepared, loss.value, capture)
    else:
        recorder.outside = "outside the penalty"
        with recorder.paused():
            penalty = gradient_penalty(loss.value, inputs)
        with explain_double_backward():
            backward(prepared, penalty.value, capture)
        check_dependence([*prepared.module.parameters(), *(x for _, x in inputs)])
        for path, grad in penalty.gradients:
            what = ".".join(("input", *path, "score.grad"))
            capture.put(
                grad,
                module=ROOT,
                type=type(prepared.module).__name__,
                call=1,
                what=what,
                kind=SCORE_GRAD,
            )
        metadata["penalty"] = {
            "name": objective.penalty,
            "formula": FORMULA,
            "value": float(penalty.value.detach()),
            "norms": list(penalty.norms),
        }
    recorder.ran_backward = True
    return metadata


def _requiring_grad(call: Any, leaves: list[tuple[TensorPath, Tensor]]) -> Any:
    """Return the call with clones of its floating-point tensors, which require grad.

    The tensors are appended to ``leaves``. The model gets clones because leaves must not be changed
    in place.
    """

    def clone(path: TensorPath, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append((path[1:], tensor.requires_grad_()))  # 0 is positional, 1 keyword
        return with_type_and_attributes(clone_preserving_strides(tensor), tensor)

    return map_tensors(call, clone)


def _value(prepared: Prepared) -> Any:
    """The model's arguments: the only one, or a tuple, or a dict, or a pair of both."""
    args, kwargs = as_call(prepared.value)
    if not kwargs and len(args) == 1:
        return args[0]
    return prepared.value


def _loss_entry(loss: Loss, raw: bool) -> dict[str, Any]:
    return {
        "name": loss.name,
        "formula": loss.formula,
        "reduction": loss.reduction,
        "raw": raw,
        "target": loss.target,
        "value": float(loss.value.detach()),
    }
