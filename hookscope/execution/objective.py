"""The loss of a run, or its gradient penalty, and the backward pass from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import ForwardError, LossError
from hookscope.execution.forward import backward, forward
from hookscope.execution.loss import (
    Loss,
    compute_loss,
    is_single_score,
    projection_loss,
    resolve_custom_loss,
)
from hookscope.execution.prepare import Prepared
from hookscope.hooks.recorder import Recorder
from hookscope.specs.losses import FORMULAS
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import LossRequest
from hookscope.specs.tensor_key import SCORE_GRAD
from hookscope.tensors.input_clones import clone_preserving_strides, with_type_and_attributes
from hookscope.tensors.nested import TensorPath, as_call, map_tensors
from hookscope.tensors.tensor_stats import euclidean_norm

log = logging.getLogger("hookscope")

FORMULA = "mean over the batch of (|gradient of the score at the input| - 1)^2"
_REFUSALS = ("is not implemented", "once_differentiable", "differentiate twice")


@dataclass(frozen=True)
class GradientPenalty:
    """A gradient penalty, and the gradients that it was computed from."""

    value: Tensor
    norms: tuple[float, ...]
    gradients: tuple[tuple[TensorPath, Tensor], ...]


def gradient_penalty(score: Tensor, inputs: Sequence[tuple[TensorPath, Tensor]]) -> GradientPenalty:
    """Return the penalty of ``score`` at ``inputs``. Its graph includes the parameters."""
    if not inputs or not score.requires_grad:
        raise LossError(
            "The score does not depend on the model's input, so there is no gradient to penalise.",
            "Use a model with a floating-point input on which its output depends.",
        )
    with explain_double_backward():
        # The incoming gradient requires grad too. Otherwise a function with once_differentiable
        # backward at the end of the model would be ignored in the second order without an error.
        seed_gradient = torch.ones_like(score).requires_grad_()
        grads = torch.autograd.grad(
            score, [x for _, x in inputs], seed_gradient, create_graph=True, materialize_grads=True
        )
    # One row for each sample.
    rows_by_input = [x.flatten(1) if x.ndim > 1 else x.reshape(1, -1) for x in grads]
    if len({len(rows) for rows in rows_by_input}) > 1:
        sizes = " and ".join(str(len(rows)) for rows in rows_by_input)
        raise LossError(
            f"The inputs have different batch sizes: {sizes}.",
            "Give every input the batch as its first dimension.",
        )
    rows = torch.cat(rows_by_input, dim=1)
    norms = euclidean_norm(rows, dim=1)
    gradients = tuple(
        (path, grad.detach().clone()) for (path, _), grad in zip(inputs, grads, strict=True)
    )
    return GradientPenalty(((norms - 1) ** 2).mean(), tuple(norms.tolist()), gradients)


def check_dependence(tensors: Iterable[Tensor]) -> None:
    """Raise LossError if a penalty's backward reached none of its parameters and inputs."""
    if all(tensor.grad is None for tensor in tensors):
        raise LossError(
            "The gradient of the score at the input is a constant: the penalty depends neither on"
            " a parameter nor on the input.",
            "Unfreeze a parameter, or choose another --loss as the score.",
        )


@contextmanager
def explain_double_backward() -> Iterator[None]:
    """Replace autograd's error that a function cannot be differentiated twice; no other error."""
    try:
        yield
    except (RuntimeError, ForwardError) as error:
        cause = error.__cause__ if isinstance(error, ForwardError) else error
        message = str(cause).partition("\n")[0].rstrip(".")
        if not any(sign in message for sign in _REFUSALS):
            raise
        raise ForwardError(
            f"The model cannot be differentiated twice, as the penalty requires: {message}.",
            ROOT,
            hint="Replace that operator. For fused attention, select the plain kernel with"
            " torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
        ) from error


@dataclass(frozen=True)
class Objective:
    """The loss that a run differentiates."""

    compute: Callable[[Prepared, Any], Loss]
    raw: bool = False
    penalty: str | None = None


def resolve_loss(request: LossRequest, *, any_output: bool = False) -> Objective:
    """Return the objective for a request. The file of a custom loss is run here.

    With ``any_output``, the loss that nobody chose is the sum of an output without several classes.
    """
    target, reduction = request.target, request.reduction
    raw, penalty = request.raw, request.penalty
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
        nonlocal name, target
        if any_output and request.is_default and name == "ce" and is_single_score(output):
            name = "sum"
            log.info("loss: sum, because the output has one score, whose cross-entropy is constant")
        categories = prepared.loaded.categories
        loss = compute_loss(
            name, output, target, reduction=reduction, raw=raw, categories=categories
        )
        if loss.classes is not None:  # later runs are compared with this one: same classes
            target = loss.classes
        return loss

    return Objective(compute, raw, penalty)


def objective_of_check(request: LossRequest) -> Objective | None:
    """Return the loss of ``check``: the chosen one, a projection of the output, or none."""
    if not request.is_default:
        return resolve_loss(request)
    if request.forward_only:
        return None
    return Objective(lambda prepared, output: projection_loss(output, prepared.seed), False, None)


def differentiate(prepared: Prepared, recorder: Recorder, objective: Objective) -> dict[str, Any]:
    """Run forward and the loss, or its penalty, backward; the output keeps its graph."""
    capture = recorder.capture
    inputs: list[tuple[TensorPath, Tensor]] = []
    call = prepared.fresh_call()
    if objective.penalty:
        call = requiring_grad(call, inputs)
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


def requiring_grad(call: Any, leaves: list[tuple[TensorPath, Tensor]]) -> Any:
    """Return the call with clones of its floating-point tensors, which become ``leaves``."""

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
