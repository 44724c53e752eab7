"""Two models that run in lockstep, so that few of their tensors are in memory.

A tensor is kept until its partner exists, and the model that made it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident

from torch import Tensor

from hookscope.errors import ForwardError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of
from hookscope.execution.prepare import Prepared
from hookscope.file_analysis.capture_comparator import Comparator
from hookscope.file_analysis.record_matches import RecordMatches
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, is_of_file, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.model_analysis.diff.lockstep import Lockstep, Mixed
from hookscope.model_analysis.diff.own_errors import (
    CallId,
    CallPairs,
    OwnErrors,
    SameCalls,
    TaughtRun,
)
from hookscope.model_analysis.diff.record_stream import StreamingSink, list_records
from hookscope.results.diff_result import BY_NAME, TensorComparison
from hookscope.results.records import Record
from hookscope.sources.wrappers import twin_of
from hookscope.specs.diff_sides import label_errors
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.tensor_stats import numpy_blocks
from hookscope.tensors.threads import as_this_thread

# The key in A of a record of a side, and how it is matched; None for one without a partner.
PairOf = Callable[[int, Record], tuple[str, str] | None]
Records = tuple[tuple[Record, ...], tuple[Record, ...]]


@dataclass(frozen=True)
class SameKeys:
    """What two runs made: all records, the comparisons of those with one key, and own errors.

    The own errors are those of calls with one name and number; None if they are not known.
    """

    records: Records
    comparisons: dict[str, TensorComparison]
    own: dict[CallId, OwnErrors] | None = None


def compare_same_keys(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    chosen: set[str],
    comparator: Comparator,
    is_local: bool,
) -> SameKeys:
    """Run both models, and compare records with one key.

    Only the ``chosen`` layers are compared. Most models match by name, and need no second run.
    With ``is_local``, a copy of B takes the values of A's run as they come, which saves a run.
    """
    layers = [layers_of(model.module) for model in prepared]
    shared = {layer.name for layer in layers[0]} & {layer.name for layer in layers[1]}
    compared = shared & chosen

    def pair_of(side: int, record: Record) -> tuple[str, str] | None:
        return (record.key, BY_NAME) if record.module in compared else None

    run = partial(_run_both, prepared, kinds, layers, pair_of, comparator)
    if is_local and (student := _student_of(prepared[1])) is not None:
        with suppress(ForwardError, Mixed):  # then the own errors need a run of their own
            return run((student, SameCalls(shared)))
    try:
        return run()
    except ForwardError:
        for side, model in enumerate(prepared):  # alone, to explain the error
            list_records(model, kinds, side)
        raise


def _student_of(b: Prepared) -> Prepared | None:
    """A copy of B that can run between the calls of B; None if there may be none."""
    if b.compiled is not None or is_of_file(b.module):
        return None
    twin = twin_of(b.module)
    return None if twin is None else replace(b, module=twin)


def compare_pairs(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    matches: RecordMatches,
    comparator: Comparator,
) -> dict[str, TensorComparison]:
    """Run both models; return the comparison of each pair of ``matches``, by its key in A.

    A pair is left out if a model is not deterministic and does not make one of the two again.
    """
    pairs: tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]] = ({}, {})
    for a, b, by in matches.pairs:
        pairs[0][a.key] = pairs[1][b.key] = (a.key, by)
    names = [{record.module for record in matches.side(side)} for side in (0, 1)]
    layers = [
        [layer for layer in layers_of(model.module) if layer.name in names[side]]
        for side, model in enumerate(prepared)
    ]
    return _run_both(
        prepared, kinds, layers, lambda side, record: pairs[side].get(record.key), comparator
    ).comparisons


def _run_both(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    layers: list[list[Layer]],
    pair_of: PairOf,
    comparator: Comparator,
    taught: tuple[Prepared, CallPairs] | None = None,
) -> SameKeys:
    """Run A and B, and the student ``taught`` if there is one."""
    gpus = sorted({gpu for model in prepared for gpu in gpus_of(model.module)})
    lockstep = Lockstep(gpus, 2 if taught is None else 3)
    buffer = _PairBuffer(lockstep, pair_of, comparator)
    sinks = [StreamingSink(partial(buffer.add, side)) for side in (0, 1)]
    passes: list[Callable[[], None]] = [
        partial(buffer.run_model, side, model, sinks[side].capture)
        for side, model in enumerate(prepared)
    ]
    models = list(prepared)
    attached: list[AbstractContextManager[object]] = [
        Recorder(model.module, layers[side], kinds, sink=sinks[side])
        for side, model in enumerate(prepared)
    ]
    student = None
    if taught is not None:
        student = TaughtRun(prepared[0], *taught, lockstep, 2, gpus)
        models.append(taught[0])
        attached.append(student.attached())
        passes.append(student.run)
    # Not in their threads: the first entered is left last.
    with _all_of([*(model.preserved() for model in models), *attached]):
        lockstep.run([as_this_thread(run) for run in passes])
    if buffer.is_mixed and student is not None:
        raise Mixed
    records = (sinks[0].capture.records, sinks[1].capture.records)
    return SameKeys(records, buffer.comparisons, None if student is None else student.found)


@signal_safe_contextmanager
def _all_of(managers: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter context managers in turn; no signal comes between one and the next."""
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


class _PairBuffer:
    """The tensors of two running models that wait for their partners."""

    def __init__(self, lockstep: Lockstep, pair_of: PairOf, comparator: Comparator) -> None:
        self.lockstep = lockstep
        self.comparisons: dict[str, TensorComparison] = {}
        self.is_mixed = False
        self._threads: dict[int, int] = {}
        self._pair_of, self._comparator = pair_of, comparator
        self._waiting: dict[str, tuple[int, Record, Tensor]] = {}

    def run_model(self, side: int, prepared: Prepared, capture: Capture) -> None:
        """Run one of the models, in its thread."""
        self._threads[side] = get_ident()
        with label_errors(side), grad_mode(False):
            forward(prepared, capture)
        # This model makes no further partners for the tensors of the other one.
        self._waiting = {k: entry for k, entry in self._waiting.items() if entry[0] == side}

    def add(self, side: int, record: Record, tensor: Tensor) -> None:
        """Compare a tensor with its partner, or store it and let the other model run."""
        if self._threads[side] != get_ident():
            self.is_mixed = True
            return
        pair = self._pair_of(side, record)
        if pair is None:
            return
        key, by = pair
        if key in self._waiting and self._waiting[key][0] != side:
            _, partner, partner_tensor = self._waiting.pop(key)
            records, tensors = (record, partner), (tensor, partner_tensor)
            a, b = side, 1 - side
            self.comparisons[key] = self._comparator.compare(
                records[a],
                records[b],
                by,
                partial(numpy_blocks, tensors[a]),
                partial(numpy_blocks, tensors[b]),
            )
        elif not self.lockstep.has_ended(1 - side):
            self._waiting[key] = side, record, tensor
            self.lockstep.hand_over(side)
            if key in self._waiting:  # from now on, the model may change it in place
                self._waiting[key] = side, record, tensor.clone()
