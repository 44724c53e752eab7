"""What a knock-out is measured by: the target's score, a loss, and the output as a whole.

Everything is settled once, on the clean run: with ``argmax`` the target of each image is the class
that the model itself preferred there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hookscope.errors import LossError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.losses.loss import class_scores, has_classes
from hookscope.execution.losses.target import Target, resolve_target
from hookscope.execution.objective import Objective, resolve_loss
from hookscope.execution.prepare import Prepared
from hookscope.results.ablation import BaselineMetrics
from hookscope.specs.losses import FORMULAS
from hookscope.specs.request import LossRequest, chosen_options
from hookscope.tensors.nested import walk


@dataclass(frozen=True)
class Baseline:
    """The clean run, and how another output is held against it.

    Attributes:
        output: the clean output.
        clean: its figures.
        classes: the target class of each row of class scores; None where there is no such target.
        top: the likeliest class of each row; None where there are no class scores.
        loss: takes an output; None where there is no loss.
    """

    output: Any
    clean: BaselineMetrics
    classes: Tensor | None = None
    top: Tensor | None = None
    loss: Callable[[Any], float] | None = None

    def figures(self, output: Any) -> dict[str, Any]:
        """Return ``score``, ``loss``, ``output`` and ``flipped`` of an output, as far as defined.

        Raises:
            LossError: the loss, or the classes, cannot be had of this output.
        """
        told: dict[str, Any] = {"output": relative_change(self.output, output)}
        if self.top is not None:
            scores = class_scores(output)
            if scores.shape != class_scores(self.output).shape:
                return {"output": None}
            told["flipped"] = int((scores.argmax(1) != self.top).sum())
            if self.classes is not None:
                told["score"] = mean_score(scores, self.classes) - _number(self.clean.score)
        if self.loss is not None:
            told["loss"] = self.loss(output) - _number(self.clean.loss)
        return told


def mean_score(scores: Tensor, classes: Tensor) -> float:
    """Return the mean logit of the classes, in float64.

    Args:
        scores: batch, class, and any more dimensions.
        classes: one class for each row and position, int64.

    Example:
        >>> import torch
        >>> mean_score(torch.tensor([[1.0, 5.0], [2.0, 3.0]]), torch.tensor([1, 0]))
        3.5
    """
    return float(scores.gather(1, classes.unsqueeze(1)).double().mean())


def resolve_baseline(
    prepared: Prepared,
    clean: Any,
    *,
    asked: LossRequest,
    rank: str | None,
    measure: Objective,
) -> Baseline:
    """Settle the target on the clean run, and return what knock-outs are measured by.

    ``score`` and ``flipped`` are there if the output is one of class scores, or ``rank`` asks for
    the score; a loss if one was asked for, or the default one fits. ``measure`` is the loss that is
    ``asked`` for, ``rank`` the figure asked for.

    Raises:
        LossError: the loss, the target and the output do not fit, or what ``rank`` asks for is not
            defined.
    """
    classed = rank == "score" or has_classes(clean, prepared.loaded.task)
    wanted = asked.loss is not None or rank == "loss"
    named = asked.loss is None or asked.loss in FORMULAS
    compares = named and FORMULAS[str(asked.loss or "ce")].needs_target
    settled: Target | None = None
    if classed or (wanted and compares):
        settled = _target(prepared, clean, asked.target, demanded=named or rank == "score")
    stick = Baseline(clean, BaselineMetrics(target=settled.text if settled else ""))
    if classed:
        stick = _with_classes(stick, settled, demanded=rank == "score")
    if not (classed or wanted):
        _check_unused_options(clean, asked)
        return stick
    if settled and compares:
        fixed = settled.values if settled.classes is None else settled.classes
        measure = resolve_loss(replace(asked, target=fixed))
    try:
        measured = measure.of(prepared, clean)
    except LossError:
        if wanted:
            raise
        return stick
    figures = replace(
        stick.clean,
        target=stick.clean.target or measured.target,
        loss=float(measured.value),
        loss_name=measured.name,
    )
    return replace(
        stick, clean=figures, loss=lambda output: float(measure.of(prepared, output).value)
    )


def _check_unused_options(clean: Any, asked: LossRequest) -> None:
    """Refuse what is only for class scores or a loss where there is neither; and nothing at all."""
    for option in (f"--{name}" for name in chosen_options(asked)):
        raise LossError(
            f"{option} is for class scores or a loss, and the output is not one of class scores.",
            f"Choose a --loss, or leave out {option}.",
        )
    if next(walk(clean), None) is None:
        raise LossError(
            "The output holds no tensor, so nothing can be measured by it.",
            "Choose another model, or wrap it in one that returns tensors.",
        )


def _target(prepared: Prepared, clean: Any, target: Any, *, demanded: bool) -> Target | None:
    """The target on the clean run; a function of the user's own may take one that is no class."""
    try:
        return resolve_target(target, class_scores(clean), prepared.loaded.categories)
    except LossError:
        if demanded:
            raise
        return None


def _with_classes(stick: Baseline, settled: Target | None, *, demanded: bool) -> Baseline:
    scores = class_scores(stick.output)
    top = scores.argmax(1)
    clean = replace(stick.clean, decisions=top.numel())
    stick = replace(stick, clean=clean, top=top)
    if settled is not None and settled.classes is not None:
        score = mean_score(scores, settled.classes)
        return replace(stick, clean=replace(clean, score=score), classes=settled.classes)
    if demanded:
        raise LossError(
            f"The score is the logit of a class, and the target is {clean.target}.",
            "Give an index or a label's name as --target, or rank by loss or output.",
        )
    return stick


def _number(value: float | None) -> float:
    assert value is not None
    return value
