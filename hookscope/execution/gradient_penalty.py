"""The gradient penalty: how far the norm of the gradient at the input is from 1.

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
from hookscope.results.module_tree import ROOT
from hookscope.tensors.nested import TensorPath
from hookscope.tensors.tensor_stats import euclidean_norm

FORMULA = "mean over the batch of (|gradient of the score at the input| - 1)^2"
_REFUSALS = ("is not implemented", "once_differentiable", "differentiate twice")


@dataclass(frozen=True)
class GradientPenalty:
    """A gradient penalty and what it came from.

    Attributes:
        value: the number itself, with its graph.
        norms: Euclidean norm of the score's gradient for each sample, all inputs together.
        gradients: gradient of the score at each input, by the input's path.
    """

    value: Tensor
    norms: tuple[float, ...]
    gradients: tuple[tuple[TensorPath, Tensor], ...]


def gradient_penalty(score: Tensor, inputs: Sequence[tuple[TensorPath, Tensor]]) -> GradientPenalty:
    """Return the penalty of ``score`` at ``inputs``; its graph leads on to the parameters.

    Args:
        score: one number, the sum over the batch of what each sample scores.
        inputs: floating tensors that require grad, whose first dimension is the batch. A tensor of
            one dimension or none is a single sample.

    Raises:
        LossError: the score does not depend on the inputs, or the inputs do not agree on the batch.
        ForwardError: an operator of the model cannot be differentiated twice.

    Example:
        >>> x = torch.ones(2, 4, requires_grad=True)
        >>> gradient_penalty((2 * x**2 / 2).sum(), [((), x)]).norms  # 2x: the root of 4 * 2^2
        (4.0, 4.0)
    """
    if not inputs or not score.requires_grad:
        raise LossError(
            "The score does not depend on the model's input, so there is no gradient to penalise.",
            "A model whose input is of a floating-point type and reaches its output is needed.",
        )
    with explain_double_backward():
        # The one that goes in requires grad too: without it a function whose backward is marked
        # once_differentiable, last in the model, would drop out of the second order in silence.
        one = torch.ones_like(score).requires_grad_()
        found = torch.autograd.grad(
            score, [x for _, x in inputs], one, create_graph=True, materialize_grads=True
        )
    each = [_rows(grad) for grad in found]
    if len({len(rows) for rows in each}) > 1:
        raise LossError(
            f"The inputs do not agree on the batch: {' and '.join(str(len(r)) for r in each)}.",
            "Give every input the batch as its first dimension.",
        )
    rows = torch.cat(each, dim=1)
    norms = euclidean_norm(rows, dim=1)
    gradients = tuple(
        (path, grad.detach().clone()) for (path, _), grad in zip(inputs, found, strict=True)
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
    """Turn autograd's refusal to differentiate twice into a sentence; change nothing else."""
    try:
        yield
    except (RuntimeError, ForwardError) as error:
        cause = error.__cause__ if isinstance(error, ForwardError) else error
        said = str(cause).partition("\n")[0].rstrip(".")
        if not any(sign in said for sign in _REFUSALS):
            raise
        raise ForwardError(
            f"The model cannot be differentiated twice, which the penalty needs: {said}.",
            ROOT,
            hint="Put another operator in its place. For fused attention, the plain one runs within"
            " torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
        ) from error


def _rows(grad: Tensor) -> Tensor:
    """The gradient as one row for each sample."""
    return grad.flatten(1) if grad.ndim > 1 else grad.reshape(1, -1)
