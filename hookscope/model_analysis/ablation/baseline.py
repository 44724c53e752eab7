"""The baseline of an ablation: the target's score, a loss and the output of the clean run.

The target is fixed by the clean run: with ``argmax`` it is the class that the model predicts there.
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
    """The clean run, with which the outputs of other runs are compared."""

    output: Any
    clean: BaselineMetrics
    classes: Tensor | None = None
    top: Tensor | None = None
    loss: Callable[[Any], float] | None = None

    def metrics_of(self, output: Any) -> dict[str, Any]:
        """Return ``score``, ``loss``, ``output`` and ``flipped`` of an output, as far as
        defined.
        """
        scores = self.score_metrics(output)
        change = None if scores is None else relative_change(self.output, output)
        return {"output": change, **(scores or {})}

    def score_metrics(self, output: Any) -> dict[str, Any] | None:
        """Return the metrics but for ``output``; None if there are other class scores."""
        metrics: dict[str, Any] = {}
        if self.top is not None:
            scores = class_scores(output)
            if scores.shape != class_scores(self.output).shape:
                return None
            metrics["flipped"] = int((scores.argmax(1) != self.top).sum())
            if self.classes is not None:
                metrics["score"] = mean_score(scores, self.classes) - _defined(self.clean.score)
        if self.loss is not None:
            metrics["loss"] = self.loss(output) - _defined(self.clean.loss)
        return metrics


def mean_score(scores: Tensor, classes: Tensor) -> float:
    """Return the mean logit of the classes, in float64.

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
    request: LossRequest,
    rank: str | None,
    objective: Objective,
) -> Baseline:
    """Resolve the target by the clean run, and return the baseline.

    ``score`` and ``flipped`` are defined if the output has class scores, or ``rank`` is the score.
    A loss is defined if the user chose one, or the default loss fits the output.
    """
    has_scores = rank == "score" or has_classes(clean, prepared.loaded.task)
    loss_required = request.loss is not None or rank == "loss"
    formula_loss = request.loss is None or request.loss in FORMULAS
    needs_target = formula_loss and FORMULAS[str(request.loss or "ce")].needs_target
    resolved: Target | None = None
    if has_scores or (loss_required and needs_target):
        required = formula_loss or rank == "score"
        resolved = _clean_target(prepared, clean, request.target, required=required)
    baseline = Baseline(clean, BaselineMetrics(target=resolved.text if resolved else ""))
    if has_scores:
        baseline = _with_classes(baseline, resolved, required=rank == "score")
    if not (has_scores or loss_required):
        _check_unused_options(clean, request)
        return baseline
    if resolved and needs_target:
        fixed = resolved.values if resolved.classes is None else resolved.classes
        objective = resolve_loss(replace(request, target=fixed))
    try:
        loss = objective.compute(prepared, clean)
    except LossError:
        if loss_required:
            raise
        return baseline
    metrics = replace(
        baseline.clean,
        target=baseline.clean.target or loss.target,
        loss=float(loss.value),
        loss_name=loss.name,
    )
    return replace(
        baseline,
        clean=metrics,
        loss=lambda output: float(objective.compute(prepared, output).value),
    )


def _check_unused_options(clean: Any, request: LossRequest) -> None:
    """Check that no option needs class scores or a loss, and that the output has a tensor."""
    for option in (f"--{name}" for name in chosen_options(request)):
        raise LossError(
            f"{option} needs class scores or a --loss, and the output has no class scores.",
            f"Add a --loss, or leave out {option}.",
        )
    if next(walk(clean), None) is None:
        raise LossError(
            "The output contains no tensor, so no change can be measured.",
            "Choose another model, or wrap it in one that returns tensors.",
        )


def _clean_target(prepared: Prepared, clean: Any, target: Any, *, required: bool) -> Target | None:
    """The target for the clean output. A custom loss may take a target that is not a class."""
    try:
        return resolve_target(target, class_scores(clean), prepared.loaded.categories)
    except LossError:
        if required:
            raise
        return None


def _with_classes(baseline: Baseline, resolved: Target | None, *, required: bool) -> Baseline:
    scores = class_scores(baseline.output)
    top = scores.argmax(1)
    clean = replace(baseline.clean, decisions=top.numel())
    baseline = replace(baseline, clean=clean, top=top)
    if resolved is not None and resolved.classes is not None:
        score = mean_score(scores, resolved.classes)
        return replace(baseline, clean=replace(clean, score=score), classes=resolved.classes)
    if required:
        raise LossError(
            f"--rank score needs a class as target, and the target is {clean.target}.",
            "Set --target to a class index or a label, or rank by loss or output.",
        )
    return baseline


def _defined(value: float | None) -> float:
    assert value is not None
    return value
