"""What can be knocked out of a model: a run with nothing changed that looks at what layers give."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.analysis.ablation.baseline import Baseline
from hookscope.errors import CheckFailed, EditError, ForwardError, LossError, RequestError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import (
    detach_clone,
    first_difference,
    forward,
    preserve_model_state,
    run_without_hooks,
)
from hookscope.execution.prepare import Prepared
from hookscope.hooks.edits.bound_edit import BoundEdit, apply_edit, is_editable
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layer_coverage import summarize_coverage
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import HookSet, what_of
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
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import TensorPath, map_tensors, walk


def ablation_edit(layer: Layer, by: str, channel: int | None = None) -> BoundEdit:
    """Return the edit that is a knock-out: of a whole layer, or of one of its channels."""
    [edit] = parse_edits(f"*={ABLATION_EDITS[by]}")
    place = layer.name if channel is None else f"{layer.name}[{channel}]"
    channels = None if channel is None else (channel,)
    word = f"{place}={ABLATION_EDITS[by]}"
    return BoundEdit(edit._replace(word=word, pattern=layer.name, channels=channels), 0, layer, {})


class AblationScan:
    """A run with nothing changed that notes what each layer gives, and whether the edit suits it.

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
        with guard, HookSet(module) as hooks:
            for layer in self.prepared.layers:
                hooks.after(layer.module, partial(self._look, layer))
            output = detach_clone(forward(self.prepared))
            self.coverage = summarize_coverage(module, self.prepared.layers, self.calls)
        return output

    def places(self) -> Iterator[tuple[Layer, int | None]]:
        """Yield what can be knocked out: layers, with ``channels`` each with every channel."""
        for layer in self._ran():
            if layer in self._faults:
                continue
            if not self.channels:
                yield layer, None
                continue
            yield from ((layer, n) for n in range(min(self._counts[layer])))

    def left_out(self) -> Iterator[SkippedLayer]:
        """Yield the layers that ran and cannot be knocked out, or not in every channel."""
        for layer in self._ran():
            reason = self._faults.get(layer, "")
            least, most = (pick(self._counts.get(layer) or {0}) for pick in (min, max))
            if self.channels and not reason and least < most:
                reason = f"channels from {least} on, which not every tensor that it gives has"
            if reason:
                yield SkippedLayer(layer.name, layer.type, reason)

    def _ran(self) -> list[Layer]:
        order = {module: n for n, module in enumerate(self.calls)}
        ran = (layer for layer in self.prepared.layers if layer.module in order)
        return sorted(ran, key=lambda layer: order[layer.module])

    def _look(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = self.calls[module] = self.calls.get(module, 0) + 1
        bound = ablation_edit(layer, self.by, 0 if self.channels else None)
        found = []

        def look(path: TensorPath, tensor: Tensor) -> Tensor:
            if is_editable(bound, tensor):
                found.append(tensor)
                key = key_of(layer.name, call, what_of(OUTPUT, path))
                apply_edit(bound, tensor, key, self.prepared.seed)  # raises where it does not suit
            return tensor

        try:
            map_tensors(output, look)
        except EditError as error:
            self._faults.setdefault(layer, error.reason)
            return
        if not found:
            self._faults.setdefault(layer, "it gives no floating-point tensor")
        counts = self._counts.setdefault(layer, set())
        counts.update(
            tensor.shape[channel_dim(layer.type, tensor.ndim)] for tensor in found if tensor.ndim
        )


log = logging.getLogger("hookscope")

SAVED_EVERY = 3.0  # seconds between two states of the file

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AblationJob:
    """What is to be knocked out, in the order in which the layers ran, and how it is measured."""

    prepared: Prepared
    by: str
    layers: Mapping[AblatedPart, Layer]
    yardstick: Baseline

    def knock_out(self, place: AblatedPart) -> LayerAblation:
        """Run the model once with this one place knocked out."""
        layer = self.layers[place]
        plan = BoundInterventions((ablation_edit(layer, self.by, place[1]),))
        try:
            output = run_without_hooks(replace(self.prepared, plan=plan))
            figures: dict[str, Any] = self.yardstick.figures(output)
        except (ForwardError, EditError, LossError) as error:  # the others may still go well
            figures = {"failed": error.message}
        return LayerAblation(layer.name, layer.type, place[1], **figures)


def prepare_ablation(
    prepared: Prepared,
    by: str,
    channels: bool,
    rank: str | None,
    settle: Callable[[Any], Baseline],
    metadata: dict[str, Any],
) -> tuple[AblationJob, Ablation]:
    """Run the model twice with nothing knocked out; return the job, and its result so far: none.

    Args:
        prepared: the model and the layers to choose from.
        by: a word of ``KNOCKOUTS``.
        channels: knock out channels in place of whole layers.
        rank: the figure to sort by; None for the score where there is one, else the output.
        settle: makes the measure, once the clean run's output is there.
        metadata: where the result comes from.

    Raises:
        ForwardError: the model raised.
        LossError: the loss, the target and the output do not fit.
        RequestError: nothing can be knocked out.
    """
    with explain_forward_errors(prepared):
        clean = run_without_hooks(prepared)
    survey = AblationScan(prepared, by, channels)
    again = survey.run()
    if different := first_difference(clean, again):
        log.warning(
            "A second run with hooks and nothing knocked out gave another result, relative %.3g"
            " (%s differs): changes no larger than that mean nothing.",
            relative_change(clean, again) or 0.0,
            different,
        )
    yardstick = settle(clean)
    layers = {(layer.name, channel): layer for layer, channel in survey.places()}
    left_out = tuple(survey.left_out())
    if not layers:
        reasons = [(x.layer, x.reason) for x in left_out]
        reasons += [(x.module, f"it never ran: {x.reason}") for x in survey.coverage.not_executed]
        raise RequestError(
            f"None of the chosen layers can be knocked out by {by}; {': '.join(reasons[0])}.",
            "Choose other layers or another --by; mean and noise may take a larger batch.",
        )
    result = Ablation(
        by=by,
        edit=ABLATION_EDITS[by],
        rank=rank or ("output" if yardstick.clean.score is None else "score"),
        total=len(layers),
        clean=yardstick.clean,
        knockouts=(),
        left_out=left_out,
        coverage=survey.coverage,
        metadata={**metadata, "fingerprint": _fingerprint(prepared, clean)},
    )
    return AblationJob(prepared, by, layers, yardstick), result


def run_ablation(
    job: AblationJob,
    result: Ablation,
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Ablation:
    """Make all knock-outs that ``file`` does not hold yet, and keep them there as it goes.

    However it ends (an error, Ctrl-C), the file then holds all that were made.

    Args:
        job: what is to be done.
        result: the result with no knock-outs in it.
        file: written every few seconds and at the end; None keeps nothing.
        progress: called with the number of those made and of all, first before the first.

    Raises:
        CheckFailed: every single knock-out failed.
        StoreError: the file cannot be written.
    """
    kept = () if file is None else result.unfinished(file)
    earlier = {knockout.place: knockout for knockout in kept if knockout.place in job.layers}
    if earlier:
        log.info("resuming: %d of %d were done", len(earlier), result.total)
    made = dict(earlier)

    def so_far() -> Ablation:
        in_order = (made[place] for place in job.layers if place in made)
        knockouts = rank_ablations(in_order, result.rank)
        return replace(result, knockouts=knockouts, resumed=len(earlier))

    saved = time.monotonic()
    try:
        if progress:
            progress(len(made), result.total)
        for place in job.layers:
            if place in made:
                continue
            made[place] = job.knock_out(place)
            if progress:
                progress(len(made), result.total)
            if file is not None and time.monotonic() - saved > SAVED_EVERY:
                so_far().save(file)
                saved = time.monotonic()
    finally:
        if file is not None and made:
            so_far().save(file)
    if all(knockout.failed for knockout in made.values()):
        first = next(iter(made.values()))
        raise CheckFailed(
            f"Every knock-out failed, {first.layer} first: {first.failed}",
            "Try another --by, or layers that the model can do without.",
        )
    return so_far()


def _fingerprint(prepared: Prepared, clean: Any) -> str | None:
    """The hash of the model's parameters and buffers, of its input, and of the clean output."""
    state = {**dict(prepared.module.named_parameters()), **dict(prepared.module.named_buffers())}
    tensors = walk((state, prepared.value, clean))
    return hash_tensors((" ".join(path), tensor) for path, tensor in tensors)
