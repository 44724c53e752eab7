"""The score that a map explains: that of a class. That of a detected object is ``BoxScore``."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from hookscope.errors import LossError, RequestError
from hookscope.execution.loss import class_scores, compute_loss, find_logits
from hookscope.execution.prepare import Prepared
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.tensors.nested import walk

log = logging.getLogger("hookscope")

_NEEDS = (
    "cam needs a classifier or a segmentation model, --scores with the name of an output that has"
    " class scores, or for a detector --box 0."
)
_SHOWN = 6  # outputs that a message names


class Score(ABC):
    """A number for each input of a batch. The first output that it is computed of fixes the class.

    Attributes:
        text: what is explained, for the metadata.
        classes: the class of each input, (N, ...).
        part: the name of the output that the score is read from; empty if there is only one.
    """

    of_object: ClassVar[bool] = False  # a detector's, which takes a list of images

    def __init__(self, target: Any, part: str | None) -> None:
        self.text = ""
        self.classes: Tensor | None = None
        self.part = part or ""
        self._target = target

    @abstractmethod
    def value(self, prepared: Prepared, output: Any) -> Tensor:
        """Return the score summed over the batch; that of one input does not depend on others."""

    @abstractmethod
    def each(self, output: Any) -> Tensor:
        """Return the score of every input, (N,), after ``value``."""

    @abstractmethod
    def probabilities(self, output: Any) -> list[float | None]:
        """Return the probability of the class for every input; None if it has none."""

    @abstractmethod
    def skips(self, prepared: Prepared, output: Any) -> Callable[[LayerCandidate], bool]:
        """Return which layers' outputs cannot explain the score, such as the scores themselves."""

    @abstractmethod
    def check_input(self, prepared: Prepared, image: Tensor) -> None:
        """Raise RequestError if the score cannot be computed for this input."""

    def entry(self) -> dict[str, Any]:
        """Return further entries of the metadata about an input."""
        return {}

    def view_size(self, prepared: Prepared, image: Tensor) -> tuple[tuple[int, ...], ...]:
        """Return the size that the layers see, and the part of it that the input fills."""
        size = tuple(image.shape[2:])
        return size, size


class ClassScore(Score):
    """The score of a class: its logit, without softmax."""

    def __init__(self, target: Any, part: str | None = None) -> None:
        super().__init__(target, part)
        self._named = part is not None
        self._ndim = 4

    def check_input(self, prepared: Prepared, image: Tensor) -> None:
        """Remember whether the input is a signal, whose scores may be (N, C, L)."""
        self._ndim = image.ndim

    def value(self, prepared: Prepared, output: Any) -> Tensor:
        """Return the target's score summed over the batch."""
        part = self._part_of(output)
        self._check_classes(part)
        loss = compute_loss("logit", part, self._target, categories=prepared.loaded.categories)
        if self.classes is None:
            self.text, self.classes = loss.target, loss.classes
            self._target = loss.classes
            if not self._named and self.part:
                names = [name for name, _ in _floating(output)]
                others = join_first([name for name in names if name != self.part], _SHOWN)
                log.info("scores: output %s (not %s; --scores names another)", self.part, others)
        return loss.value

    def each(self, output: Any) -> Tensor:
        """Return the score of every image, (N,); of a segmentation, the sum over its positions."""
        assert self.classes is not None
        scores = self.of(output).detach().gather(1, self.classes.unsqueeze(1))
        return scores.flatten(1).sum(1).cpu()

    def probabilities(self, output: Any) -> list[float | None]:
        """Return the target's softmax, its mean over positions; None if there is one class."""
        assert self.classes is not None
        logits = self.of(output).detach().cpu().double()
        if logits.shape[1] == 1:
            return [None] * len(logits)
        shares = logits.softmax(1).gather(1, self.classes.cpu().unsqueeze(1))
        means: list[float | None] = shares.flatten(1).mean(1).tolist()
        return means

    def of(self, output: Any) -> Tensor:
        """Return the class scores, (N, C, ...)."""
        return class_scores(self._part_of(output))

    def skips(self, prepared: Prepared, output: Any) -> Callable[[LayerCandidate], bool]:
        """Leave out the scores of a segmentation."""
        shape = self.of(output).shape

        def skip(candidate: LayerCandidate) -> bool:
            tokens = candidate.grid is not None and candidate.grid.layout == "NLC"
            return len(shape) > 2 and not tokens and candidate.shape[1] == shape[1]

        return skip

    def _part_of(self, output: Any) -> Any:
        """The part of an output that has the scores, by its name or by what is usual."""
        if self._named:
            return named_part(output, self.part)
        floating = _floating(output)
        if isinstance(output, list) and all(isinstance(item, Tensor) for item in output):
            part: Any = floating[0][1] if floating else output
        else:
            part = output
        if len(floating) > 1 and not self.part:
            chosen = find_logits(part)[1]
            self.part = next((name for name, tensor in floating if tensor is chosen), "")
        return part

    def _check_classes(self, output: Any) -> None:
        try:
            class_scores(output)
        except LossError as error:
            raise RequestError(error.message, _NEEDS) from error
        if isinstance(output, Tensor) and output.ndim == 3 and self._ndim != 3:
            raise RequestError("The output is a sequence, not class scores for the image.", _NEEDS)


def named_part(output: Any, name: str) -> Any:
    """Return the tensor of an output that ``--scores`` names, in what keeps its meaning."""
    found = dict(_floating(output))
    if name not in found:
        near = did_you_mean(name, found)
        names = join_first(list(found), _SHOWN)
        raise RequestError(
            f"The model's output has no floating-point tensor {name!r}.",
            near or (f"It has {names}." if names != "output" else "It is one tensor."),
        )
    return {"logits": found[name]} if name.rpartition(".")[2] == "logits" else found[name]


def _floating(output: Any) -> list[tuple[str, Tensor]]:
    """The floating-point tensors of an output by their names; one alone is ``output``."""
    return [
        (".".join(path) or "output", tensor)
        for path, tensor in walk(output)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
