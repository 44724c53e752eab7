"""The losses of a training step as programs write them: PyTorch's functions, with a target.

The losses of ``grads`` take a distribution over the classes as target and check its values; a run
without values cannot, and a training step has class numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.errors import LossError
from hookscope.execution.loss import (
    class_scores,
    find_logits,
    flatten_floating,
    resolve_custom_loss,
)
from hookscope.specs.request import LossRequest

# The loss of the scores and the target.
_OF_CLASSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": F.cross_entropy,
    "nll": F.nll_loss,
    "logit": lambda scores, target: scores.gather(1, target.unsqueeze(1)).sum(),
}
_DENSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": lambda scores, target: F.kl_div(scores.log_softmax(1), target, reduction="batchmean"),
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "bce": F.binary_cross_entropy_with_logits,
}
_WITHOUT_TARGET: dict[str, Callable[[Any], Tensor]] = {
    "sum": lambda output: flatten_floating(output).sum(),
    "norm": lambda output: torch.linalg.vector_norm(flatten_floating(output)),
}


def loss_of(request: LossRequest) -> Callable[[Any], tuple[Tensor, tuple[Tensor, ...]]]:
    """Return a function of the output: the loss, and the target that it was computed with.

    Without a chosen loss it is the model's own, if the output has one, as models of transformers
    have with labels; else cross-entropy of class scores; else the sum of the output.
    """
    custom = resolve_custom_loss(request.loss, None, raw=False)
    if custom is not None:
        return lambda output: (custom.compute(output, request.target, None).value, ())
    chosen = None if request.loss is None else request.name

    def compute(output: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        own = getattr(output, "loss", None)
        if chosen is None and isinstance(own, Tensor):
            return own, ()
        name = chosen or ("ce" if _has_classes(output) else "sum")
        if name in _WITHOUT_TARGET:
            return _WITHOUT_TARGET[name](output), ()
        scores = class_scores(output)
        if name in _DENSE:
            target = torch.empty_like(scores, requires_grad=False)
            return _DENSE[name](scores, target), (target,)
        if scores.ndim == 3 and find_logits(output)[0] == "logits":  # of tokens, as rows
            scores = scores.transpose(1, 2).flatten(0, 1)
        shape = (scores.shape[0], *scores.shape[2:])
        target = torch.zeros(shape, dtype=torch.long, device=scores.device)
        return _OF_CLASSES[name](scores, target), (target,)

    return compute


def _has_classes(output: Any) -> bool:
    try:
        return class_scores(output).ndim > 1
    except LossError:
        return False
