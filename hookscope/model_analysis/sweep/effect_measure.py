"""The effect of a change on a model's prediction: score, logit difference, loss and divergence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hookscope.errors import LossError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.language_output import last_logits
from hookscope.execution.loss import class_scores
from hookscope.execution.objective import resolve_loss
from hookscope.execution.prepare import Prepared
from hookscope.execution.target import Target, resolve_target
from hookscope.model_analysis.ablation_run import Baseline, mean_score, resolve_baseline
from hookscope.model_analysis.output_names import OutputNames
from hookscope.results.sweep import SweepBaseline
from hookscope.specs.losses import is_target_file
from hookscope.specs.request import LossRequest

_LAST = "after the last token"


@dataclass(frozen=True)
class EffectMeasure:
    """The run without a change, with which others are compared."""

    prepared: Prepared
    output: Any
    baseline: Baseline
    clean: SweepBaseline
    against: Tensor | None = None

    def metrics_of(self, output: Any) -> dict[str, Any]:
        """Return the metrics of a ``SweepCell`` of an output, as far as they are defined."""
        read = _read(self.prepared, output)
        scores = self.baseline.score_metrics(read)
        metrics = {"output": relative_change(self.output, output), **(scores or {})}
        if "flipped" not in metrics:
            return metrics
        before, after = (class_scores(each) for each in (self.baseline.output, read))
        metrics["kl"] = divergence(before, after)
        if self.against is not None and self.clean.difference is not None:
            metrics["difference"] = self._difference(after) - self.clean.difference
        return metrics

    def _difference(self, scores: Tensor) -> float:
        assert self.baseline.classes is not None and self.against is not None
        return mean_score(scores, self.baseline.classes) - mean_score(scores, self.against)


def divergence(before: Tensor, after: Tensor) -> float:
    """Return the Kullback-Leibler divergence of ``after`` from ``before`` in nats, in float64.

    It is the sum over the classes of p log(p / q) with p the softmax of ``before`` and q that of
    ``after``, averaged over the rows and positions.

    Example:
        >>> import torch
        >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        0.0
    """
    p, q = (scores.double().log_softmax(1) for scores in (before, after))
    # Where p is 0, the product is 0 and not NaN.
    terms = p.exp() * (p - q).masked_fill(p.exp() == 0, 0)
    return float(terms.sum(1).mean())


def resolve_measure(
    prepared: Prepared, clean: Any, request: LossRequest, against: str | int | None
) -> EffectMeasure:
    """Resolve the targets by the run without a change."""
    read = _read(prepared, clean)
    last = last_logits(prepared, clean)
    names = None if last is None else OutputNames(prepared, last.shape[-1])
    target = _token(request.target, names)
    request = replace(request, target=target)
    baseline = resolve_baseline(
        prepared, read, request=request, rank=None, objective=resolve_loss(request)
    )
    metrics = baseline.clean
    shown = SweepBaseline(
        target=_shown(metrics.target, names),
        read_at="" if last is None else _LAST,
        score=metrics.score,
        loss=metrics.loss,
        loss_name=metrics.loss_name,
        decisions=metrics.decisions,
    )
    measure = EffectMeasure(prepared, clean, baseline, shown)
    if against is None:
        return measure
    if baseline.classes is None:
        raise LossError(
            "--against needs class scores and a class as target, which this run does not have.",
            "Leave it out, or set --target to a class.",
        )
    other: Target = resolve_target(
        _token(against, names), class_scores(read), prepared.loaded.categories
    )
    if other.classes is None:
        raise LossError(f"--against {against} is not a class.", "Give an index or a label.")
    measure = replace(measure, against=other.classes)
    difference = measure._difference(class_scores(read))
    shown = replace(shown, against=_shown(other.text, names), difference=difference)
    return replace(measure, clean=shown)


def _read(prepared: Prepared, output: Any) -> Any:
    """The part of an output that is measured: of a language model, after the last token."""
    last = last_logits(prepared, output)
    return output if last is None else last


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
