"""A loss for any model: its output along a random direction."""

from __future__ import annotations

import math
from typing import Any

import torch

from hookscope.errors import LossError
from hookscope.execution.losses.compute import Loss, all_floating

NAME = "projection"
FORMULA = "sum of r x over all entries of x, r normal noise of variance 1/n from the seed"


def project(output: Any, seed: int) -> Loss:
    """Return the sum of all entries of ``output``, each times a random number.

    The gradient at the output is of norm 1, and of no direction that a model may be blind to: the
    sum of a softmax or of a normalised output is constant, and so is its norm; a cross-entropy
    with the model's own answer has next to no gradient where the model is sure.

    Raises:
        LossError: the output holds no floating tensor, or no entry.

    Example:
        >>> x = torch.zeros(8, requires_grad=True)
        >>> project(x, seed=0).value.backward()
        >>> 0.5 < float(x.grad.norm()) < 2
        True
    """
    flat = all_floating(output)
    if not flat.numel():
        raise LossError("The output is empty.", "Nothing in it has a gradient.")
    source = torch.Generator().manual_seed(seed)
    noise = torch.randn(flat.numel(), generator=source, dtype=torch.float64)
    noise = (noise / math.sqrt(flat.numel())).to(flat)
    return Loss((flat * noise).sum(), NAME, FORMULA, "", "")
