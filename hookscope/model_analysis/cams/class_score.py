"""The score that is explained: the logit of the target class."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hookscope.errors import LossError, RequestError
from hookscope.execution.losses.loss import Loss, class_scores, compute_loss
from hookscope.execution.prepare import Prepared

_ONE = "cam needs a classifier or a segmentation model."


class ClassScore:
    """The score of the target. The first output that it is computed of fixes the classes."""

    def __init__(self, target: Any) -> None:
        self.text = ""
        self.classes: Tensor | None = None
        self._target = target

    def loss(self, prepared: Prepared, output: Any) -> Loss:
        """Return the score summed over the batch. The score of one image does not depend on
        others.
        """
        self._check_classes(output)
        categories = prepared.loaded.categories
        loss = compute_loss("logit", output, self._target, categories=categories)
        if self.classes is None:
            self.text, self.classes = loss.target, loss.classes
            self._target = loss.classes
        return loss

    def each(self, output: Any) -> Tensor:
        """Return the score of every image, (N,); of a segmentation, the sum over its positions."""
        assert self.classes is not None
        scores = class_scores(output).detach().gather(1, self.classes.unsqueeze(1))
        return scores.flatten(1).sum(1).cpu()

    def probabilities(self, output: Any) -> list[float | None]:
        """Return the target's softmax, its mean over positions; None if there is one class."""
        assert self.classes is not None
        logits = class_scores(output).detach().cpu().double()
        if logits.shape[1] == 1:
            return [None] * len(logits)
        shares = logits.softmax(1).gather(1, self.classes.cpu().unsqueeze(1))
        means: list[float | None] = shares.flatten(1).mean(1).tolist()
        return means

    def _check_classes(self, output: Any) -> None:
        sequence = isinstance(output, Tensor) and output.ndim == 3
        try:
            class_scores(output)
        except LossError as error:
            raise RequestError(error.message, _ONE) from error
        if sequence:
            raise RequestError("The output is a sequence, not class scores for the image.", _ONE)
