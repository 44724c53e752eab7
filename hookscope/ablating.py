"""Knock out one layer, or one channel, after the other, and measure what that does to the output.

A knock-out is an edit of the layer's output like those of ``--edit``; nothing is recorded, and of
each run only its figures stay.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookscope.ablation import Ablation, Knockout, LeftOut, Place, ranked
from hookscope.changes import Plan
from hookscope.choices import KNOCKOUTS
from hookscope.coverage import summarize_coverage
from hookscope.edits.effect import relative_change
from hookscope.edits.plan import Bound, carry_out, channel_dim, is_editable
from hookscope.edits.words import read_edits
from hookscope.errors import CheckFailed, EditError, ForwardError, LossError, RequestError
from hookscope.execute import bits_of, first_difference, forward, run_bare, untouched
from hookscope.hooks import HookSet, what_of
from hookscope.kinds import OUTPUT
from hookscope.measuring import Yardstick
from hookscope.modules import Layer
from hookscope.prepare import Prepared
from hookscope.records import key_of
from hookscope.tensors import Path, map_tensors, walk

log = logging.getLogger("hookscope")

SAVED_EVERY = 3.0  # seconds between two states of the file
Progress = Callable[[int, int], None]


def knocked_out(layer: Layer, by: str, channel: int | None = None) -> Bound:
    """Return the edit that is a knock-out: of a whole layer, or of one of its channels."""
    [edit] = read_edits(f"*={KNOCKOUTS[by]}")
    place = layer.name if channel is None else f"{layer.name}[{channel}]"
    channels = None if channel is None else (channel,)
    word = f"{place}={KNOCKOUTS[by]}"
    return Bound(edit._replace(word=word, pattern=layer.name, channels=channels), 0, layer, {})


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
    # A copy, as the output may be a tensor of the model's own that the next run changes.
    clean = map_tensors(run_bare(prepared), lambda path, tensor: tensor.detach().clone())
    survey = _Survey(prepared, by, channels)
    again = survey.run()
    if different := first_difference(clean, again):
        log.warning(
            "A second run with nothing knocked out gave another result, relative %.3g (%s differs):"
            " changes no larger than that mean nothing.",
            relative_change(clean, again) or 0.0,
            different,
        )
    yardstick = settle(clean)
    layers = {(layer.name, channel): layer for layer, channel in survey.places()}
    coverage = summarize_coverage(prepared.module, prepared.layers, survey.calls)
    left_out = tuple(survey.left_out())
    if not layers:
        reasons = [(x.layer, x.reason) for x in left_out]
        reasons += [(x.module, f"it never ran: {x.reason}") for x in coverage.silent]
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
        coverage=coverage,
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


class _Survey:
    """A run with nothing changed that notes what each layer gives, and whether the edit suits it.

    Attributes:
        calls: how often each layer's module ran, in the order in which they first returned.
    """

    def __init__(self, prepared: Prepared, by: str, channels: bool) -> None:
        self.prepared = prepared
        self.by = by
        self.channels = channels
        self.calls: dict[nn.Module, int] = {}
        self._counts: dict[Layer, set[int]] = {}
        self._faults: dict[Layer, str] = {}

    def run(self) -> Any:
        """Run the model and return its output."""
        guard = untouched(self.prepared.module, train=self.prepared.train, seed=self.prepared.seed)
        with guard, HookSet(self.prepared.module) as hooks:
            for layer in self.prepared.layers:
                hooks.after(layer.module, partial(self._look, layer))
            return forward(self.prepared)

    def places(self) -> Iterator[tuple[Layer, int | None]]:
        """Yield what can be knocked out: layers, with ``channels`` each with every channel."""
        for layer in self._ran():
            if layer in self._faults:
                continue
            if not self.channels:
                yield layer, None
                continue
            yield from ((layer, n) for n in range(min(self._counts[layer])))

    def left_out(self) -> Iterator[LeftOut]:
        """Yield the layers that ran and cannot be knocked out, or not in every channel."""
        for layer in self._ran():
            reason = self._faults.get(layer, "")
            least, most = (pick(self._counts.get(layer) or {0}) for pick in (min, max))
            if self.channels and not reason and least < most:
                reason = f"channels from {least} on, which not every tensor that it gives has"
            if reason:
                yield LeftOut(layer.name, layer.type, reason)

    def _ran(self) -> list[Layer]:
        order = {module: n for n, module in enumerate(self.calls)}
        ran = (layer for layer in self.prepared.layers if layer.module in order)
        return sorted(ran, key=lambda layer: order[layer.module])

    def _look(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = self.calls[module] = self.calls.get(module, 0) + 1
        bound = knocked_out(layer, self.by, 0 if self.channels else None)
        found = []

        def look(path: Path, tensor: Tensor) -> Tensor:
            if is_editable(bound, tensor):
                found.append(tensor)
                key = key_of(layer.name, call, what_of(OUTPUT, path))
                carry_out(bound, tensor, key, self.prepared.seed)  # raises where it does not suit
            return tensor

        try:
            map_tensors(output, look)
        except EditError as error:
            self._faults.setdefault(layer, str(error.__cause__ or error.message))
            return
        if not found:
            self._faults.setdefault(layer, "it gives no floating-point tensor")
        counts = self._counts.setdefault(layer, set())
        counts.update(tensor.shape[channel_dim(layer, tensor)] for tensor in found if tensor.ndim)


def _fingerprint(prepared: Prepared, clean: Any) -> str:
    """SHA-256 of the model's parameters and buffers, of its input, and of the clean output."""
    state = {**dict(prepared.module.named_parameters()), **dict(prepared.module.named_buffers())}
    digest = hashlib.sha256()
    for path, tensor in walk((state, prepared.value, clean)):
        digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(bits_of(tensor).cpu().numpy().data)
    return digest.hexdigest()
