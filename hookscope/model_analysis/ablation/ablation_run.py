"""Ablation: one run of the model for each layer, or channel, that is ablated.

An ablation is an edit of the layer's output like those of ``--edit``. Nothing is recorded, and only
the metrics of each run are stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hookscope.errors import EditError, ForwardError, LossError, RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import run_without_hooks
from hookscope.execution.prepare import Prepared
from hookscope.files.progress import Progress
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.ablation.baseline import Baseline
from hookscope.model_analysis.sweep.edit_scan import EditScan, fingerprint, make_runs, warn_of_noise
from hookscope.results.ablation import (
    AblatedPart,
    Ablation,
    LayerAblation,
    SkippedLayer,
    rank_ablations,
)
from hookscope.specs.choices import ABLATION_EDITS
from hookscope.specs.edit import parse_edits


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
