"""The gradient penalty: the deviation of the norm of the input's gradient from 1.

I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin, A. Courville: Improved Training of Wasserstein
GANs, 2017 (arXiv:1704.00028), equation 3 without its factor lambda, at the input that is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.errors import ForwardError, LossError
from hookscope.specs.patterns import ROOT
from hookscope.tensors.nested import TensorPath
from hookscope.tensors.tensor_stats import euclidean_norm

FORMULA = "mean over the batch of (|gradient of the score at the input| - 1)^2"
_REFUSALS = ("is not implemented", "once_differentiable", "differentiate twice")


@dataclass(frozen=True)
class GradientPenalty:
    """A gradient penalty, and the gradients that it was computed from."""

    value: Tensor
    norms: tuple[float, ...]
    gradients: tuple[tuple[TensorPath, Tensor], ...]


def gradient_penalty(score: Tensor, inputs: Sequence[tuple[TensorPath, Tensor]]) -> GradientPenalty:
    """Return the penalty of ``score`` at ``inputs``. Its graph includes the parameters.

    Example:
        >>> x = torch.ones(2, 4, requires_grad=True)
        >>> gradient_penalty((2 * x**2 / 2).sum(), [((), x)]).norms  # 2x: the root of 4 * 2^2
        (4.0, 4.0)
    """
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
    rows_by_input = [_sample_rows(grad) for grad in grads]
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


def _sample_rows(grad: Tensor) -> Tensor:
    """The gradient as one row for each sample."""
    return grad.flatten(1) if grad.ndim > 1 else grad.reshape(1, -1)
