"""Two models that run in lockstep, so that few of their tensors are in memory.

A tensor is kept until its partner exists, and the model that made it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from hookscope.errors import ForwardError
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of
from hookscope.execution.prepare import Prepared
from hookscope.file_analysis.capture_comparator import Comparator
from hookscope.file_analysis.record_matches import RecordMatches
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.model_analysis.diff.lockstep import Lockstep
from hookscope.model_analysis.diff.record_stream import StreamingSink, list_records
from hookscope.results.diff_result import BY_NAME, TensorComparison
from hookscope.results.records import Record
from hookscope.specs.diff_request import label_errors
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.tensor_stats import numpy_blocks
from hookscope.tensors.threads import as_this_thread

# The key in A of a record of a side, and how it is matched; None for one without a partner.
PairOf = Callable[[int, Record], tuple[str, str] | None]
Records = tuple[tuple[Record, ...], tuple[Record, ...]]


def compare_same_keys(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    chosen: set[str],
    comparator: Comparator,
) -> tuple[Records, dict[str, TensorComparison]]:
    """Run both models; return all their records, and the comparisons of those with one key.

    Only the ``chosen`` layers are compared. Most models match by name, and need no second run.
    """
    layers = [layers_of(model.module) for model in prepared]
    shared = {layer.name for layer in layers[0]} & {layer.name for layer in layers[1]} & chosen

    def pair_of(side: int, record: Record) -> tuple[str, str] | None:
        return (record.key, BY_NAME) if record.module in shared else None

    try:
        return _run_both(prepared, kinds, layers, pair_of, comparator)
    except ForwardError:
        for side, model in enumerate(prepared):  # alone, to explain the error
            list_records(model, kinds, side)
        raise


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
    _, comparisons = _run_both(
        prepared, kinds, layers, lambda side, record: pairs[side].get(record.key), comparator
    )
    return comparisons


def _run_both(
    prepared: tuple[Prepared, Prepared],
    kinds: Iterable[str],
    layers: list[list[Layer]],
    pair_of: PairOf,
    comparator: Comparator,
) -> tuple[Records, dict[str, TensorComparison]]:
    gpus = sorted({gpu for model in prepared for gpu in gpus_of(model.module)})
    with prepared[0].preserved(), prepared[1].preserved():
        buffer = _PairBuffer(Lockstep(gpus), pair_of, comparator)
        sinks, recorders, passes = [], [], []
        for side, model in enumerate(prepared):
            sinks.append(StreamingSink(partial(buffer.add, side)))
            recorders.append(Recorder(model.module, layers[side], kinds, sink=sinks[side]))
            run = partial(buffer.run_model, side, model, sinks[side].capture)
            passes.append(as_this_thread(run))
        with recorders[0], recorders[1]:  # not in their threads: the first entered is left last
            buffer.lockstep.run((passes[0], passes[1]))
    return (sinks[0].capture.records, sinks[1].capture.records), buffer.comparisons


class _PairBuffer:
    """The tensors of two running models that wait for their partners."""

    def __init__(self, lockstep: Lockstep, pair_of: PairOf, comparator: Comparator) -> None:
        self.lockstep = lockstep
        self.comparisons: dict[str, TensorComparison] = {}
        self._pair_of, self._comparator = pair_of, comparator
        self._waiting: dict[str, tuple[int, Record, Tensor]] = {}

    def run_model(self, side: int, prepared: Prepared, capture: Capture) -> None:
        """Run one of the models, in its thread."""
        with label_errors(side), grad_mode(False):
            forward(prepared, capture)
        # This model makes no further partners for the tensors of the other one.
        self._waiting = {k: entry for k, entry in self._waiting.items() if entry[0] == side}

    def add(self, side: int, record: Record, tensor: Tensor) -> None:
        """Compare a tensor with its partner, or store it and let the other model run."""
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
