"""Two models run in step, so that memory holds one tensor of each and not all.

Both run once before that, on their own, with nothing kept: then it is known which tensor of A
belongs to which of B. In the run that compares, each model has a thread, and only one of the two
runs at a time. A tensor that has a partner is kept until that one is there; the model that made it
waits meanwhile. Tensors wait longer only where the models make them in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.analysis.diff.lockstep import Lockstep
from hookscope.errors import HookscopeError, LayerError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward, preserve_model_state
from hookscope.execution.prepare import Prepared, prepare, select_layers
from hookscope.execution.provenance import describe_run
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink
from hookscope.inputs.batch import Batch
from hookscope.results.diff.comparator import Comparator
from hookscope.results.diff.diff_result import Diff, TensorComparison
from hookscope.results.diff.record_matches import (
    RecordMatches,
    build_diff,
    match_records,
    select_matches,
)
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.sources.wrappers import copy_model
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.record_kinds import VALUE_KINDS, resolve_kinds
from hookscope.specs.request import InputRequest, LayerSelection, chosen_options
from hookscope.tensors.interrupts import signal_safe
from hookscope.tensors.tensor_stats import numpy_blocks
from hookscope.tensors.threads import as_this_thread

SIDES = ("A", "B")


@contextmanager
def label_errors(side: int) -> Iterator[None]:
    """Let an error in the block say in which of the two models it arose."""
    try:
        yield
    except HookscopeError as error:
        error.message = f"{SIDES[side]}: {error.message}"
        raise


class StreamingCapture(Capture):
    """A recording that hands each tensor on as it comes and keeps none."""

    def __init__(self, hand: Callable[[Record, Tensor], None]) -> None:
        super().__init__()
        self._hand = hand

    def put(self, tensor: Tensor, **origin: Any) -> Record:
        """Hand ``tensor`` on; its record stays, without statistics."""
        record = super().put(tensor, **origin)
        self._tensors.clear()
        self._records[record.key] = replace(record, summary=partial(Stats))
        self._hand(self._records[record.key], tensor)
        return record


def list_records(prepared: Prepared, kinds: Iterable[str], side: int) -> tuple[Record, ...]:
    """Run a model once, of all its layers, and return what it makes, without a tensor.

    Raises:
        ForwardError: the model raised.
    """
    every = layers_of(prepared.module)
    told = StreamingCapture(lambda record, tensor: None)
    recorder = Recorder(prepared.module, every, kinds, sink=partial(CaptureSink, capture=told))
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    explained = explain_forward_errors(prepared)
    with label_errors(side), explained, guard, signal_safe(torch.no_grad()), recorder:
        forward(prepared, told)
    return told.records


def compare_in_lockstep(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    matching: RecordMatches,
    judge: Comparator,
) -> list[TensorComparison]:
    """Run both models in step and judge each pair of ``matching``; they come in its order.

    A pair is left out if a model that is not deterministic does not make one of the two again.

    Raises:
        ForwardError: a model raised.
    """
    devices = (p.device for one in prepared for p in one.module.parameters())
    gpus = sorted({device.index for device in devices if device.type == "cuda"})
    first, second = (
        preserve_model_state(one.module, train=one.train, seed=one.seed) for one in prepared
    )
    with first, second:
        meeting = _PairBuffer(Lockstep(gpus), matching, judge)
        recorders, works = [], []
        for side, one in enumerate(prepared):
            names = {record.module for record in matching.side(side)}
            layers = [layer for layer in layers_of(one.module) if layer.name in names]
            passing = StreamingCapture(partial(meeting.arrive, side))
            sink = partial(CaptureSink, capture=passing)
            recorders.append(Recorder(one.module, layers, kinds, sink=sink))
            works.append(as_this_thread(partial(meeting.work, side, one, passing)))
        with recorders[0], recorders[1]:  # not in their threads: the first entered is left last
            meeting.turns.run((works[0], works[1]))
    return [meeting.found[n] for n in sorted(meeting.found)]


class _PairBuffer:
    """Where the tensors of two running models meet."""

    def __init__(self, turns: Lockstep, matching: RecordMatches, judge: Comparator) -> None:
        self.turns = turns
        self.found: dict[int, TensorComparison] = {}
        self._judge = judge
        self._how = [by for _, _, by in matching.pairs]
        self._numbers: Sequence[dict[str, int]] = [
            {record.key: n for n, record in enumerate(matching.side(side))} for side in (0, 1)
        ]
        self._waiting: dict[int, tuple[int, Record, Tensor]] = {}

    def work(self, side: int, prepared: Prepared, capture: Capture) -> None:
        """Run a model, in a thread of its own."""
        with label_errors(side), signal_safe(torch.no_grad()):
            forward(prepared, capture)
        # What still waits for a tensor of this model waits in vain.
        self._waiting = {n: one for n, one in self._waiting.items() if one[0] == side}

    def arrive(self, side: int, record: Record, tensor: Tensor) -> None:
        """Compare a tensor with its partner, or keep it and let the other model run."""
        n = self._numbers[side].get(record.key)
        if n is None:
            return
        if n in self._waiting:
            _, other, its = self._waiting.pop(n)
            (a, of_a), (b, of_b) = ((record, tensor), (other, its))[:: 1 - 2 * side]
            self.found[n] = self._judge.pair(
                a, b, self._how[n], partial(numpy_blocks, of_a), partial(numpy_blocks, of_b)
            )
        elif not self.turns.has_ended(1 - side):
            self._waiting[n] = side, record, tensor
            self.turns.hand_over(side)


def compare_models(request: DiffRequest) -> Diff:
    """Compare two models on one input."""
    a, b = prepared = _prepare_both(request)
    kinds = resolve_kinds(request.what or "output", VALUE_KINDS)
    judge = Comparator(request.atol, request.rtol, request.equal_nan)
    chosen_a, chosen_b = _chosen(prepared, request.selection)
    records_a, records_b = (list_records(one, kinds, side) for side, one in enumerate(prepared))
    found = select_matches(
        match_records(records_a, records_b, request.map or {}),
        lambda record: record.module in chosen_a,
        lambda record: record.module in chosen_b,
    )
    pairs = compare_in_lockstep(prepared, kinds, found, judge)
    options = {k: v for k, v in chosen_options(request).items() if k not in ("a", "b")}
    origins = {"a": describe_run("diff", a, options), "b": describe_run("diff", b, options)}
    return build_diff(found, pairs, strict=request.strict, equal_nan=judge.equal_nan, **origins)


def _prepare_both(request: DiffRequest) -> tuple[Prepared, Prepared]:
    """Load both models; the input is built once, as A takes it, and B gets the same values."""
    made: list[Prepared] = []
    requests = request.requests()
    for side in range(2):
        with label_errors(side):
            of_side = next(requests)
            if made:
                batch = Batch(made[0].value, made[0].sources, "")
                of_side = replace(of_side, input=InputRequest(batch))
            made.append(prepare(of_side))
    a, b = made
    if _tensors_and_modules(a.module) & _tensors_and_modules(b.module):
        # The hooks of both would be on one module.
        repair = "Build B anew rather than give the same model twice."
        b = replace(b, module=copy_model(b.module, "to run beside itself", repair))
    return a, b


def _tensors_and_modules(model: nn.Module) -> set[int]:
    return {id(x) for x in (*model.modules(), *model.parameters(), *model.buffers())}


def _chosen(
    prepared: tuple[Prepared, Prepared], selection: LayerSelection
) -> tuple[set[str], set[str]]:
    """The names of the chosen layers; a pattern may mean something in one model alone."""
    failed: list[LayerError] = []
    found: list[set[str]] = []
    for one in prepared:
        try:
            layers = select_layers(selection, one.module, one.loaded.word)
        except LayerError as error:
            failed.append(error)
            layers = ()
        found.append({layer.name for layer in layers})
    if len(failed) == len(prepared):
        raise failed[0]
    return found[0], found[1]
