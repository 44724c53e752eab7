"""Ablation: one run of the model for each layer, or channel, whose output an edit ablates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hookscope.errors import RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import run_without_hooks
from hookscope.execution.prepare import Prepared
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.sweep.edit_scan import (
    EditScan,
    fingerprint,
    no_layer_reason,
    warn_of_noise,
)
from hookscope.model_analysis.sweep.effect_measure import EffectMeasure
from hookscope.model_analysis.sweep.sweep_columns import EditPlace
from hookscope.model_analysis.sweep.sweep_run import SweepEdit
from hookscope.results.ablation import AblatedPart, Ablation, BaselineMetrics, LayerAblation
from hookscope.results.sweep import SweepColumn
from hookscope.specs.choices import ABLATION_EDITS
from hookscope.specs.sweep_edit import parse_sweep_edit


@dataclass(frozen=True)
class AblationJob:
    """The parts to ablate, in the order in which the layers ran, and the run without ablation."""

    prepared: Prepared
    by: str
    layers: Mapping[AblatedPart, Layer]
    measure: EffectMeasure

    def run(self, part: AblatedPart) -> LayerAblation:
        """Run the model once with one part ablated."""
        layer, (_, channel) = self.layers[part], part
        interventions = BoundInterventions((ablation_edit(layer, self.by, channel),))
        edited = replace(self.prepared, interventions=interventions)
        effect = self.measure.effect_of(lambda: run_without_hooks(edited))
        return LayerAblation(layer.name, layer.type, channel, **effect)


def ablation_edit(layer: Layer, by: str, channel: int | None = None) -> BoundEdit:
    """Return the edit that ablates a layer, or one of its channels."""
    edit = SweepEdit(parse_sweep_edit(ABLATION_EDITS[by]), {}, {}, {})
    return edit.at(layer, EditPlace(SweepColumn(), channel=channel))


def _parts(scan: EditScan, channels: bool) -> Iterator[tuple[Layer, int | None]]:
    """Yield the layers that can be ablated; with ``channels``, every channel of each."""
    for layer in scan.executed():
        if layer in scan.faults:
            continue
        if not channels:
            yield layer, None
            continue
        yield from ((layer, n) for n in range(min(scan.channels[layer])))


def prepare_ablation(
    prepared: Prepared,
    by: str,
    channels: bool,
    rank: str | None,
    measure: Callable[[Any], EffectMeasure],
    metadata: dict[str, Any],
    *,
    resumable: bool,
) -> tuple[AblationJob, Ablation]:
    """Run the model twice without ablation; return the job and an empty result."""
    with explain_forward_errors(prepared):
        clean = run_without_hooks(prepared)
    scan = EditScan(prepared, lambda layer: [ablation_edit(layer, by, 0 if channels else None)])
    warn_of_noise(clean, scan.run())
    compared = measure(clean)
    layers = {(layer.name, channel): layer for layer, channel in _parts(scan, channels)}
    left_out = tuple(scan.left_out(channels=channels))
    if not layers:
        raise RequestError(
            f"None of the selected layers can be ablated by {by};"
            f" {no_layer_reason(scan, left_out)}.",
            "Select other layers or another --by; mean and noise may need a larger batch.",
        )
    shown = compared.clean
    result = Ablation(
        by=by,
        edit=ABLATION_EDITS[by],
        rank=rank or ("output" if shown.score is None else "score"),
        total=len(layers),
        clean=BaselineMetrics(
            shown.target, shown.score, shown.loss, shown.loss_name, shown.decisions
        ),
        ablations=(),
        left_out=left_out,
        coverage=scan.coverage,
        metadata={**metadata, **(fingerprint(prepared, clean) if resumable else {})},
    )
    return AblationJob(prepared, by, layers, compared), result
