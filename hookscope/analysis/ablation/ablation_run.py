"""Ablation: one run of the model for each layer, or channel, that is ablated.

An ablation is an edit of the layer's output like those of ``--edit``. Nothing is recorded, and only
the metrics of each run are stored.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from hookscope.analysis.ablation.baseline import Baseline
from hookscope.errors import CheckFailed, EditError, ForwardError, LossError, RequestError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import detach_clone, forward, run_without_hooks
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import first_difference
from hookscope.hooks.edits.bound_edit import BoundEdit, apply_edit, is_editable
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layer_coverage import summarize_coverage
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tensor_sink import what_of
from hookscope.results.ablation import (
    AblatedPart,
    Ablation,
    LayerAblation,
    SkippedLayer,
    rank_ablations,
)
from hookscope.results.dimensions import channel_dim
from hookscope.results.records import Coverage, key_of
from hookscope.specs.choices import ABLATION_EDITS
from hookscope.specs.edit import parse_edits
from hookscope.specs.progress import Progress
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import TensorPath, map_tensors, walk

log = logging.getLogger("hookscope")

SAVED_EVERY = 3.0  # seconds between two writes of the file


def ablation_edit(layer: Layer, by: str, channel: int | None = None) -> BoundEdit:
    """Return the edit that ablates a layer, or one of its channels."""
    [edit] = parse_edits(f"*={ABLATION_EDITS[by]}")
    target = layer.name if channel is None else f"{layer.name}[{channel}]"
    channels = None if channel is None else (channel,)
    text = f"{target}={ABLATION_EDITS[by]}"
    return BoundEdit(edit._replace(text=text, pattern=layer.name, channels=channels), 0, layer, {})


class AblationScan(CallSubscriber):
    """A run without changes that finds out which layers the edit fits, and their channels.

    Attributes:
        calls: how often each layer's module ran, in the order in which they first returned.
        coverage: which of the layers ran.
    """

    def __init__(self, prepared: Prepared, by: str, channels: bool) -> None:
        self.prepared = prepared
        self.by = by
        self.channels = channels
        self.calls: dict[nn.Module, int] = {}
        self.coverage = Coverage()
        self._counts: dict[Layer, set[int]] = {}
        self._faults: dict[Layer, str] = {}

    def run(self) -> Any:
        """Run the model and return its output."""
        module = self.prepared.module
        guard = preserve_model_state(module, train=self.prepared.train, seed=self.prepared.seed)
        registry = CallRegistry(module)
        with guard, registry.subscribed(self, self.prepared.layers):
            output = detach_clone(forward(self.prepared))
            self.calls = {called: registry.counts[called] for called in self.calls}
            self.coverage = summarize_coverage(module, self.prepared.layers, self.calls)
        return output

    def parts(self) -> Iterator[tuple[Layer, int | None]]:
        """Yield the layers that can be ablated; with ``channels``, every channel of each."""
        for layer in self._ran():
            if layer in self._faults:
                continue
            if not self.channels:
                yield layer, None
                continue
            yield from ((layer, n) for n in range(min(self._counts[layer])))

    def left_out(self) -> Iterator[SkippedLayer]:
        """Yield the layers that ran and cannot be ablated, or not all of their channels."""
        for layer in self._ran():
            reason = self._faults.get(layer, "")
            counts = self._counts.get(layer) or {0}
            least, most = min(counts), max(counts)
            if self.channels and not reason and least < most:
                reason = f"channels from {least} up, which some of its output tensors lack"
            if reason:
                yield SkippedLayer(layer.name, layer.type, reason)

    def _ran(self) -> list[Layer]:
        order = {module: n for n, module in enumerate(self.calls)}
        ran = (layer for layer in self.prepared.layers if layer.module in order)
        return sorted(ran, key=lambda layer: order[layer.module])

    def after_call(self, call: ModuleCall, state: None) -> None:
        """Note what a call returned, and whether the edit suits it."""
        if call.failed:
            return
        layer = call.layer
        self.calls[layer.module] = call.number
        bound = ablation_edit(layer, self.by, 0 if self.channels else None)
        editable = []

        def try_edit(path: TensorPath, tensor: Tensor) -> Tensor:
            if is_editable(bound, tensor):
                editable.append(tensor)
                key = key_of(layer.name, call.number, what_of(OUTPUT, path))
                apply_edit(bound, tensor, key, self.prepared.seed)  # raises if it does not fit
            return tensor

        try:
            map_tensors(call.output, try_edit)
        except EditError as error:
            self._faults.setdefault(layer, error.reason)
            return
        if not editable:
            self._faults.setdefault(layer, "it returns no floating-point tensor")
        counts = self._counts.setdefault(layer, set())
        counts.update(
            tensor.shape[channel_dim(layer.type, tensor.ndim)] for tensor in editable if tensor.ndim
        )


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
) -> tuple[AblationJob, Ablation]:
    """Run the model twice without ablation; return the job and an empty result.

    Args:
        prepared: the model and the layers to choose from.
        by: one of ``ABLATION_EDITS``.
        channels: ablate channels instead of whole layers.
        rank: the metric to sort by; None for the score if there is one, else the output.
        measure: makes the baseline of the output of the clean run.
        metadata: the metadata of the result.

    Raises:
        ForwardError: the model raised.
        LossError: the loss or the target does not fit the output.
        RequestError: nothing can be ablated.
    """
    with explain_forward_errors(prepared):
        clean = run_without_hooks(prepared)
    scan = AblationScan(prepared, by, channels)
    again = scan.run()
    if different := first_difference(clean, again):
        log.warning(
            "A second run without ablation gave a different result (%s differs, relative difference"
            " %.3g). Changes up to that size are noise.",
            different,
            relative_change(clean, again) or 0.0,
        )
    baseline = measure(clean)
    layers = {(layer.name, channel): layer for layer, channel in scan.parts()}
    left_out = tuple(scan.left_out())
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
        metadata={**metadata, "fingerprint": _fingerprint(prepared, clean)},
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

    Args:
        job: the parts to ablate, and the baseline.
        result: the result without ablations.
        file: written every few seconds and at the end; None to write no file.
        progress: called with the number of ablations done and the total, at the start too.

    Raises:
        CheckFailed: every ablation failed.
        StoreError: the file cannot be written.
    """
    stored = () if file is None else result.unfinished(file)
    earlier = {ablation.place: ablation for ablation in stored if ablation.place in job.layers}
    if earlier:
        log.info("resuming: %d of %d already done", len(earlier), result.total)
    made = dict(earlier)

    def so_far() -> Ablation:
        in_order = (made[part] for part in job.layers if part in made)
        ablations = rank_ablations(in_order, result.rank)
        return replace(result, ablations=ablations, resumed=len(earlier))

    saved = time.monotonic()
    try:
        if progress:
            progress(len(made), result.total)
        for part in job.layers:
            if part in made:
                continue
            made[part] = job.ablate(part)
            if progress:
                progress(len(made), result.total)
            if file is not None and time.monotonic() - saved > SAVED_EVERY:
                so_far().save(file)
                saved = time.monotonic()
    finally:
        if file is not None and made:
            so_far().save(file)
    if all(ablation.failed for ablation in made.values()):
        first = next(iter(made.values()))
        raise CheckFailed(
            f"Every ablation failed. The first, of {first.layer}: {first.failed}",
            "Try another --by, or select other layers.",
        )
    return so_far()


def _fingerprint(prepared: Prepared, clean: Any) -> str | None:
    """The hash of the model's parameters and buffers, its input and the clean output."""
    state = {**dict(prepared.module.named_parameters()), **dict(prepared.module.named_buffers())}
    tensors = walk((state, prepared.value, clean))
    return hash_tensors((" ".join(path), tensor) for path, tensor in tensors)
