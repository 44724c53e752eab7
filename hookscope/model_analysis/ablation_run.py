"""Ablation: one run of the model for each layer, or channel, that is ablated.

An ablation is an edit of the layer's output like those of ``--edit``. Nothing is recorded, and only
the metrics of each run are stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hookscope.errors import EditError, ForwardError, LossError, RequestError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import run_without_hooks
from hookscope.execution.loss import class_scores, has_classes
from hookscope.execution.objective import Objective, resolve_loss
from hookscope.execution.prepare import Prepared
from hookscope.execution.target import Target, resolve_target
from hookscope.files.progress import Progress
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.sweep.edit_scan import EditScan, fingerprint, make_runs, warn_of_noise
from hookscope.results.ablation import (
    AblatedPart,
    Ablation,
    BaselineMetrics,
    LayerAblation,
    SkippedLayer,
    rank_ablations,
)
from hookscope.specs.choices import ABLATION_EDITS
from hookscope.specs.edit import parse_edits
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


def ablation_edit(layer: Layer, by: str, channel: int | None = None) -> BoundEdit:
    """Return the edit that ablates a layer, or one of its channels."""
    [edit] = parse_edits(f"*={ABLATION_EDITS[by]}")
    target = layer.name if channel is None else f"{layer.name}[{channel}]"
    channels = None if channel is None else (channel,)
    text = f"{target}={ABLATION_EDITS[by]}"
    return BoundEdit(edit._replace(text=text, pattern=layer.name, channels=channels), 0, layer, {})


def _parts(scan: EditScan, channels: bool) -> Iterator[tuple[Layer, int | None]]:
    """Yield the layers that can be ablated; with ``channels``, every channel of each."""
    for layer in scan.executed():
        if layer in scan.faults:
            continue
        if not channels:
            yield layer, None
            continue
        yield from ((layer, n) for n in range(min(scan.channels[layer])))


def _left_out(scan: EditScan, channels: bool) -> Iterator[SkippedLayer]:
    """Yield the layers that ran and cannot be ablated, or not all of their channels."""
    for layer in scan.executed():
        reason = scan.faults.get(layer, "")
        counts = scan.channels.get(layer) or {0}
        least, most = min(counts), max(counts)
        if channels and not reason and least < most:
            reason = f"channels from {least} up, which some of its output tensors lack"
        if reason:
            yield SkippedLayer(layer.name, layer.type, reason)


@dataclass(frozen=True)
class AblationJob:
    """The parts to ablate, in the order in which the layers ran, and the baseline."""

    prepared: Prepared
    by: str
    layers: Mapping[AblatedPart, Layer]
    baseline: Baseline

    def ablate(self, part: AblatedPart) -> LayerAblation:
        """Run the model once with one part ablated."""
        layer, (_, channel) = self.layers[part], part
        interventions = BoundInterventions((ablation_edit(layer, self.by, channel),))
        try:
            output = run_without_hooks(replace(self.prepared, interventions=interventions))
            metrics: dict[str, Any] = self.baseline.metrics_of(output)
        except (ForwardError, EditError, LossError) as error:  # other parts may not fail
            metrics = {"failed": error.message}
        return LayerAblation(layer.name, layer.type, channel, **metrics)


def prepare_ablation(
    prepared: Prepared,
    by: str,
    channels: bool,
    rank: str | None,
    measure: Callable[[Any], Baseline],
    metadata: dict[str, Any],
    *,
    resumable: bool,
) -> tuple[AblationJob, Ablation]:
    """Run the model twice without ablation; return the job and an empty result."""
    with explain_forward_errors(prepared):
        clean = run_without_hooks(prepared)
    scan = EditScan(prepared, lambda layer: [ablation_edit(layer, by, 0 if channels else None)])
    warn_of_noise(clean, scan.run())
    baseline = measure(clean)
    layers = {(layer.name, channel): layer for layer, channel in _parts(scan, channels)}
    left_out = tuple(_left_out(scan, channels))
    if not layers:
        reasons = [(skipped.layer, skipped.reason) for skipped in left_out]
        not_executed = scan.coverage.not_executed
        reasons += [(layer.module, f"it never ran: {layer.reason}") for layer in not_executed]
        raise RequestError(
            f"None of the selected layers can be ablated by {by}; {': '.join(reasons[0])}.",
            "Select other layers or another --by; mean and noise may need a larger batch.",
        )
    result = Ablation(
        by=by,
        edit=ABLATION_EDITS[by],
        rank=rank or ("output" if baseline.clean.score is None else "score"),
        total=len(layers),
        clean=baseline.clean,
        ablations=(),
        left_out=left_out,
        coverage=scan.coverage,
        metadata={**metadata, **(fingerprint(prepared, clean) if resumable else {})},
    )
    return AblationJob(prepared, by, layers, baseline), result


def run_ablation(
    job: AblationJob,
    result: Ablation,
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Ablation:
    """Make all ablations that ``file`` does not contain yet, and write them to it.

    After an error or Ctrl-C too, the file contains all that were made.
    """
    stored = () if file is None else result.unfinished(file)
    earlier = {ablation.place: ablation for ablation in stored if ablation.place in job.layers}

    def ranked(made: Mapping[AblatedPart, LayerAblation]) -> Ablation:
        in_order = (made[part] for part in job.layers if part in made)
        ablations = rank_ablations(in_order, result.rank)
        return replace(result, ablations=ablations, resumed=len(earlier))

    save = None if file is None else lambda made: ranked(made).save(file)
    return ranked(make_runs(list(job.layers), earlier, job.ablate, save, progress))
