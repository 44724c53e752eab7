"""Knock out one layer, or one channel, after the other, and measure what that does to the output.

A knock-out is an edit of the layer's output like those of ``--edit``; nothing is recorded, and of
each run only its figures stay.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hookscope.analysis.ablation.survey import Survey, knocked_out
from hookscope.analysis.ablation.yardstick import Yardstick
from hookscope.errors import CheckFailed, EditError, ForwardError, LossError, RequestError
from hookscope.execution.edit_effect import relative_change
from hookscope.execution.failures.explaining import failures_explained
from hookscope.execution.forward import first_difference, run_bare
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import Plan
from hookscope.hooks.layers import Layer
from hookscope.results.ablation import Ablation, Knockout, Place, ranked
from hookscope.specs.choices import KNOCKOUTS
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import walk

log = logging.getLogger("hookscope")

SAVED_EVERY = 3.0  # seconds between two states of the file
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """What is to be knocked out, in the order in which the layers ran, and how it is measured."""

    prepared: Prepared
    by: str
    layers: Mapping[Place, Layer]
    yardstick: Yardstick

    def knock_out(self, place: Place) -> Knockout:
        """Run the model once with this one place knocked out."""
        layer = self.layers[place]
        plan = Plan((knocked_out(layer, self.by, place[1]),))
        try:
            output = run_bare(replace(self.prepared, plan=plan))
            figures: dict[str, Any] = self.yardstick.figures(output)
        except (ForwardError, EditError, LossError) as error:  # the others may still go well
            figures = {"failed": error.message}
        return Knockout(layer.name, layer.type, place[1], **figures)


def prepare_job(
    prepared: Prepared,
    by: str,
    channels: bool,
    rank: str | None,
    settle: Callable[[Any], Yardstick],
    metadata: dict[str, Any],
) -> tuple[Job, Ablation]:
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
    with failures_explained(prepared):
        clean = run_bare(prepared)
    survey = Survey(prepared, by, channels)
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
        reasons += [(x.module, f"it never ran: {x.reason}") for x in survey.coverage.silent]
        raise RequestError(
            f"None of the chosen layers can be knocked out by {by}; {': '.join(reasons[0])}.",
            "Choose other layers or another --by; mean and noise may take a larger batch.",
        )
    result = Ablation(
        by=by,
        edit=KNOCKOUTS[by],
        rank=rank or ("output" if yardstick.clean.score is None else "score"),
        total=len(layers),
        clean=yardstick.clean,
        knockouts=(),
        left_out=left_out,
        coverage=survey.coverage,
        metadata={**metadata, "fingerprint": _fingerprint(prepared, clean)},
    )
    return Job(prepared, by, layers, yardstick), result


def carry_through(
    job: Job, result: Ablation, file: str | os.PathLike[str] | None, progress: Progress | None
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
        knockouts = ranked(in_order, result.rank)
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
