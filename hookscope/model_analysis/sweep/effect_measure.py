"""The effect of a change on a model's prediction: score, logit difference, loss and divergence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from hookscope.errors import EditError, ForwardError, LossError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.language_output import OutputNames, last_logits
from hookscope.execution.loss import class_scores, has_classes
from hookscope.execution.objective import Objective, resolve_loss
from hookscope.execution.prepare import Prepared
from hookscope.execution.target import Target, resolve_target
from hookscope.results.sweep import SweepBaseline
from hookscope.specs.losses import FORMULAS, is_target_file
from hookscope.specs.request import LossRequest, chosen_options
from hookscope.tensors.nested import walk

_LAST = "after the last token"


@dataclass(frozen=True)
class EffectMeasure:
    """The run without a change, with which others are compared."""

    prepared: Prepared
    output: Any
    clean: SweepBaseline = field(default_factory=SweepBaseline)
    scores: Tensor | None = None
    classes: Tensor | None = None
    loss: Callable[[Any], float] | None = None
    against: Tensor | None = None
    is_prediction: bool = False

    def effect_of(self, run: Callable[[], Any]) -> dict[str, Any]:
        """Return the metrics of the output of a run; ``failed`` if the model fails in it."""
        try:
            return self.metrics_of(run())
        except (ForwardError, EditError, LossError) as error:  # other runs may not fail
            return {"failed": error.message}

    def metrics_of(self, output: Any) -> dict[str, Any]:
        """Return the metrics of an output that are defined."""
        metrics: dict[str, Any] = {"output": relative_change(self.output, output)}
        read = self._read(output)
        if self.scores is not None:
            scores = class_scores(read)
            if scores.shape != self.scores.shape:
                return metrics
            metrics["flipped"] = int((scores.argmax(1) != self.scores.argmax(1)).sum())
            if self.classes is not None:
                metrics["score"] = mean_score(scores, self.classes) - _defined(self.clean.score)
            if self.is_prediction:
                metrics["kl"] = divergence(self.scores, scores)
            if self.against is not None:
                metrics["difference"] = self.difference(scores) - _defined(self.clean.difference)
        if self.loss is not None:
            metrics["loss"] = self.loss(read) - _defined(self.clean.loss)
        return metrics

    def difference(self, scores: Tensor) -> float:
        """Return the mean logit of the target minus that of the other class."""
        assert self.classes is not None and self.against is not None
        return mean_score(scores, self.classes) - mean_score(scores, self.against)

    def _read(self, output: Any) -> Any:
        """The part of an output that is measured."""
        last = last_logits(self.prepared, output) if self.is_prediction else None
        return output if last is None else last


def mean_score(scores: Tensor, classes: Tensor) -> float:
    """Return the mean logit of the classes, in float64."""
    return float(scores.gather(1, classes.unsqueeze(1)).double().mean())


def divergence(before: Tensor, after: Tensor) -> float:
    """Return sum p log(p / q) in nats, p being the softmax before and q after; the mean of rows."""
    p, q = (scores.double().log_softmax(1) for scores in (before, after))
    # Where p is 0, the product is 0 and not NaN.
    terms = p.exp() * (p - q).masked_fill(p.exp() == 0, 0)
    return float(terms.sum(1).mean())


def resolve_measure(
    prepared: Prepared,
    clean: Any,
    request: LossRequest,
    *,
    rank: str | None = None,
    objective: Objective | None = None,
    is_prediction: bool = False,
) -> EffectMeasure:
    """Resolve the target by the run without a change, and return what measures others.

    Of scores and loss it measures what the output has, and what the user asks for.
    """
    objective = objective or resolve_loss(request)
    measure = EffectMeasure(prepared, clean, is_prediction=is_prediction)
    read = measure._read(clean)
    has_scores = rank == "score" or has_classes(read, prepared.loaded.task)
    loss_required = request.loss is not None or rank == "loss"
    formula_loss = request.loss is None or request.loss in FORMULAS
    needs_target = formula_loss and FORMULAS[str(request.loss or "ce")].needs_target
    resolved: Target | None = None
    if has_scores or (loss_required and needs_target):
        required = formula_loss or rank == "score"
        resolved = _clean_target(prepared, read, request.target, required=required)
    if resolved is not None:
        measure = replace(measure, clean=replace(measure.clean, target=resolved.text))
    if has_scores:
        measure = _with_classes(measure, class_scores(read), resolved, required=rank == "score")
    if not (has_scores or loss_required):
        _check_unused_options(read, request)
        return measure
    if resolved and needs_target:
        fixed = resolved.values if resolved.classes is None else resolved.classes
        objective = resolve_loss(replace(request, target=fixed))
    try:
        loss = objective.compute(prepared, read)
    except LossError:
        if loss_required:
            raise
        return measure
    metrics = replace(
        measure.clean,
        target=measure.clean.target or loss.target,
        loss=float(loss.value),
        loss_name=loss.name,
    )
    return replace(
        measure,
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


def _with_classes(
    measure: EffectMeasure, scores: Tensor, resolved: Target | None, *, required: bool
) -> EffectMeasure:
    clean = replace(measure.clean, decisions=scores.argmax(1).numel())
    measure = replace(measure, clean=clean, scores=scores)
    if resolved is not None and resolved.classes is not None:
        score = mean_score(scores, resolved.classes)
        return replace(measure, clean=replace(clean, score=score), classes=resolved.classes)
    if required:
        raise LossError(
            f"--rank score needs a class as target, and the target is {clean.target}.",
            "Set --target to a class index or a label, or rank by loss or output.",
        )
    return measure


def _defined(value: float | None) -> float:
    assert value is not None
    return value


def measure_prediction(
    prepared: Prepared, clean: Any, request: LossRequest, against: str | int | None
) -> EffectMeasure:
    """Return what measures a prediction: of a language model, the one after the last token."""
    last = last_logits(prepared, clean)
    names = None if last is None else OutputNames(prepared, last.shape[-1])
    request = replace(request, target=_token(request.target, names))
    measure = resolve_measure(prepared, clean, request, is_prediction=True)
    target, read_at = _shown(measure.clean.target, names), "" if last is None else _LAST
    measure = replace(measure, clean=replace(measure.clean, target=target, read_at=read_at))
    if against is None:
        return measure
    scores = measure.scores
    if scores is None or measure.classes is None:
        raise LossError(
            "--against needs class scores and a class as target, which this run does not have.",
            "Leave it out, or set --target to a class.",
        )
    categories = prepared.loaded.categories
    other: Target = resolve_target(_token(against, names), scores, categories)
    if other.classes is None:
        raise LossError(f"--against {against} is not a class.", "Give an index or a label.")
    measure = replace(measure, against=other.classes)
    difference = measure.difference(scores)
    shown = replace(measure.clean, against=_shown(other.text, names), difference=difference)
    return replace(measure, clean=shown)


def _token(target: Any, names: OutputNames | None) -> Any:
    """The id of a token that is named by its text; any other target as it is."""
    if isinstance(target, list | tuple):
        return [_token(each, names) for each in target]
    if names is None or not isinstance(target, str) or target in ("argmax", "uniform"):
        return target
    numbers = all(part.strip().isdecimal() for part in target.split(","))
    return target if numbers or is_target_file(target) else names.target(target)


def _shown(text: str, names: OutputNames | None) -> str:
    """The text of a target: of a token its text within a sentence."""
    before, _, number = text.rpartition(" ")
    if names is None or not number.isdecimal() or "," in text:
        return text
    return f"{before} {names[int(number)].text!r}".strip()
