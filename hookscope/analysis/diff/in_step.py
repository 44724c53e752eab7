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
from torch import Tensor

from hookscope.analysis.diff.turns import Turns
from hookscope.errors import HookscopeError
from hookscope.execution.failures.explaining import failures_explained
from hookscope.execution.forward import forward, untouched
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_store import Keeper
from hookscope.results.diff.judging import Judge
from hookscope.results.diff.matching import Matching
from hookscope.results.diff.result import Pair
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.tensors.interrupts import restored
from hookscope.tensors.stats import blocks
from hookscope.tensors.threads import as_this_thread

SIDES = ("A", "B")


@contextmanager
def naming(side: int) -> Iterator[None]:
    """Let an error in the block say in which of the two models it arose."""
    try:
        yield
    except HookscopeError as error:
        error.message = f"{SIDES[side]}: {error.message}"
        raise


class Passing(Capture):
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


def records_of(prepared: Prepared, kinds: Iterable[str], side: int) -> tuple[Record, ...]:
    """Run a model once, of all its layers, and return what it makes, without a tensor.

    Raises:
        ForwardError: the model raised.
    """
    every = layers_of(prepared.module)
    told = Passing(lambda record, tensor: None)
    recorder = Recorder(prepared.module, every, kinds, keeper=partial(Keeper, capture=told))
    guard = untouched(prepared.module, train=prepared.train, seed=prepared.seed)
    explained = failures_explained(prepared)
    with naming(side), explained, guard, restored(torch.no_grad()), recorder:
        forward(prepared, told)
    return told.records


def compare_in_step(
    prepared: tuple[Prepared, Prepared], kinds: Iterable[str], matching: Matching, judge: Judge
) -> list[Pair]:
    """Run both models in step and judge each pair of ``matching``; they come in its order.

    A pair is left out if a model that is not deterministic does not make one of the two again.

    Raises:
        ForwardError: a model raised.
    """
    devices = (p.device for one in prepared for p in one.module.parameters())
    gpus = sorted({device.index for device in devices if device.type == "cuda"})
    first, second = (untouched(one.module, train=one.train, seed=one.seed) for one in prepared)
    with first, second:
        meeting = _Meeting(Turns(gpus), matching, judge)
        recorders, works = [], []
        for side, one in enumerate(prepared):
            names = {record.module for record in matching.side(side)}
            layers = [layer for layer in layers_of(one.module) if layer.name in names]
            passing = Passing(partial(meeting.arrive, side))
            keeper = partial(Keeper, capture=passing)
            recorders.append(Recorder(one.module, layers, kinds, keeper=keeper))
            works.append(as_this_thread(partial(meeting.work, side, one, passing)))
        with recorders[0], recorders[1]:  # not in their threads: the first entered is left last
            meeting.turns.run((works[0], works[1]))
    return [meeting.found[n] for n in sorted(meeting.found)]


class _Meeting:
    """Where the tensors of two running models meet."""

    def __init__(self, turns: Turns, matching: Matching, judge: Judge) -> None:
        self.turns = turns
        self.found: dict[int, Pair] = {}
        self._judge = judge
        self._how = [by for _, _, by in matching.pairs]
        self._numbers: Sequence[dict[str, int]] = [
            {record.key: n for n, record in enumerate(matching.side(side))} for side in (0, 1)
        ]
        self._waiting: dict[int, tuple[int, Record, Tensor]] = {}

    def work(self, side: int, prepared: Prepared, capture: Capture) -> None:
        """Run a model, in a thread of its own."""
        with naming(side), restored(torch.no_grad()):
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
                a, b, self._how[n], partial(blocks, of_a), partial(blocks, of_b)
            )
        elif not self.turns.has_ended(1 - side):
            self._waiting[n] = side, record, tensor
            self.turns.hand_over(side)
