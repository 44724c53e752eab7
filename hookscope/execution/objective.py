"""A model forward and a loss backward: the loss, or the gradient penalty of it as a score."""

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
from hookscope.results.module_tree import ROOT
from hookscope.specs.losses import FORMULAS
from hookscope.specs.record_kinds import SCORE_GRAD
from hookscope.specs.request import LossRequest
from hookscope.tensors.clones import clone_preserving_strides, with_type_and_attributes
from hookscope.tensors.nested import TensorPath, as_call, map_tensors


@dataclass(frozen=True)
class Objective:
    """What is going to be differentiated: ``of(prepared, output)`` computes the loss."""

    of: Callable[[Prepared, Any], Loss]
    raw: bool
    penalty: str | None


def resolve_loss(asked: LossRequest) -> Objective:
    """Return how the loss is computed; a file that holds it is run now, before any model is.

    Raises:
        LossError: there is no such loss or penalty, or the choices do not go together.
    """
    target, reduction, raw, penalty = asked.target, asked.reduction, asked.raw, asked.penalty
    own = resolve_custom_loss(asked.loss, reduction, raw)
    if own is not None:
        return Objective(
            lambda prepared, output: own.compute(
                output, target, _value(prepared), prepared.loaded.categories
            ),
            raw,
            penalty,
        )
    name = asked.name
    if penalty and name in FORMULAS and FORMULAS[name].reduction:
        reduction = "sum"

    def of(prepared: Prepared, output: Any) -> Loss:
        nonlocal target
        categories = prepared.loaded.categories
        found = compute_loss(
            name, output, target, reduction=reduction, raw=raw, categories=categories
        )
        if found.classes is not None:  # a run to compare with is measured against the same ones
            target = found.classes
        return found

    return Objective(of, raw, penalty)


def differentiate(prepared: Prepared, recorder: Recorder, measure: Objective) -> dict[str, Any]:
    """Run the model forward and the loss, or its penalty, backward, within an open recording.

    The output is left in the recorder's capture, attached to its graph.

    Returns:
        What the metadata tell of it: ``loss``, and ``penalty`` where there is one.

    Raises:
        LossError: the loss or its target does not fit, or there is nothing to differentiate.
        ForwardError: the model raised, forward or backward.
    """
    capture = recorder.capture
    inputs: list[tuple[TensorPath, Tensor]] = []
    call = prepared.fresh_call()
    if measure.penalty:
        call = _requiring_grad(call, inputs)
    capture.output = forward(prepared, capture, call)
    measured = measure.of(prepared, capture.output)
    described: dict[str, Any] = {"loss": _loss_entry(measured, measure.raw)}
    if not measure.penalty:
        backward(prepared, measured.value, capture)
    else:
        recorder.outside = "outside the penalty"
        with recorder.paused():
            penalty = gradient_penalty(measured.value, inputs)
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
        described["penalty"] = {
            "name": measure.penalty,
            "formula": FORMULA,
            "value": float(penalty.value.detach()),
            "norms": list(penalty.norms),
        }
    recorder.ran_backward = True
    return described


def _requiring_grad(call: Any, found: list[tuple[TensorPath, Tensor]]) -> Any:
    """The call with clones of its floating tensors, which are made to require grad.

    The tensors themselves are listed in ``found``: as leaves they may not be changed in place.
    """

    def change(path: TensorPath, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        found.append((path[1:], tensor.requires_grad_()))  # 0 is positional, 1 keyword
        return with_type_and_attributes(clone_preserving_strides(tensor), tensor)

    return map_tensors(call, change)


def _value(prepared: Prepared) -> Any:
    """What the model was called with: its one argument, or a tuple, or a dict, or both."""
    args, kwargs = as_call(prepared.value)
    if not kwargs and len(args) == 1:
        return args[0]
    return prepared.value


def _loss_entry(measured: Loss, raw: bool) -> dict[str, Any]:
    return {
        "name": measured.name,
        "formula": measured.formula,
        "reduction": measured.reduction,
        "raw": raw,
        "target": measured.target,
        "value": float(measured.value.detach()),
    }
