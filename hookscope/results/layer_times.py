"""The time of each layer over several runs: medians and spreads of the events of traces.

What runs between two events of hookscope includes a part of its own hooks. ``HookCost`` says how
much; ``without_hooks`` subtracts it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from hookscope.errors import CheckFailed
from hookscope.files.words import plural
from hookscope.results.trace_events import (
    BACKWARD,
    FORWARD,
    ListedLayer,
    TraceEvent,
    called_in,
)
from hookscope.specs.patterns import ROOT, layer_text

Run = Sequence[TraceEvent]


@dataclass(frozen=True)
class HookCost:
    """Milliseconds that the hooks on a module add to each of its calls in one direction.

    Attributes:
        inner: what they add to the time of the module itself.
        outer: what they add to the module that calls it.
    """

    inner: float = 0.0
    outer: float = 0.0

    @property
    def total(self) -> float:
        """What they add to the run."""
        return self.inner + self.outer

    @classmethod
    def middle(cls, costs: Sequence[HookCost]) -> HookCost:
        """Return the median of each number."""
        return cls(median(cost.inner for cost in costs), median(cost.outer for cost in costs))


@dataclass(frozen=True)
class Timing:
    """Milliseconds over several runs: the median, and the interquartile range.

    Attributes:
        median: half of the runs took at most this time.
        spread: the third quartile minus the first, interpolated linearly as ``numpy.percentile``
            does. None for a single run.

    Example:
        >>> Timing.of([1.0, 2.0, 3.0, 4.0, 100.0])
        Timing(median=3.0, spread=2.0)
    """

    median: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Timing:
        """Return the statistics of the times of one layer."""
        if len(values) < 2:
            return cls(median(values), None)
        first, _, third = quantiles(values, n=4, method="inclusive")
        return cls(median(values), third - first)


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer in one direction, over several runs.

    Attributes:
        direction: ``forward`` or ``backward``.
        module: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        calls: number of its calls in a run; ``time`` and ``own`` are their sums. 0 for a container
            that is never called, such as a ``ModuleList``: its ``time`` is that of the modules
            inside it.
        time: with the modules inside it.
        own: without them, listed or not.
        share: the median of ``time`` divided by that of the whole model, forward and backward.
        own_share: the same of ``own``. The shares of all layers of a model add up to about 1.
    """

    direction: str
    module: str
    type: str
    calls: int
    time: Timing
    own: Timing
    share: float | None
    own_share: float | None


@dataclass(frozen=True)
class LayerTimes:
    """The statistics of repeated runs.

    Attributes:
        repeat: number of runs that were measured.
        warmup: number of runs before them.
        layers: in the order of their first calls, forward and then backward.
        hooks: by direction what the hooks cost for each call. It is subtracted from all times.
    """

    repeat: int
    warmup: int
    layers: tuple[LayerTime, ...]
    hooks: dict[str, HookCost]

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        listed: Sequence[ListedLayer],
        warmup: int,
        hooks: dict[str, HookCost],
    ) -> LayerTimes:
        """Return the statistics of runs whose times are without the hooks."""
        return cls(len(runs), warmup, tuple(_layer_times(runs, listed)), hooks)

    def total(self, direction: str) -> float:
        """Return the median of the whole model, in milliseconds."""
        whole = (layer for layer in self.layers if layer.module == ROOT)
        return sum(layer.time.median for layer in whole if layer.direction == direction)


def without_hooks(events: Run, hooks: dict[str, HookCost]) -> tuple[TraceEvent, ...]:
    """Return the events of a run without the time of the hooks, also in the calls around them."""
    corrected = []
    for event, (children, inside) in zip(events, _calls_within(events), strict=True):
        cost = hooks[event.direction]
        time = event.time - cost.inner - inside * cost.total
        own = event.own - cost.inner - children * cost.outer
        corrected.append(replace(event, time=max(time, 0.0), own=max(own, 0.0)))
    return tuple(corrected)


def _calls_within(events: Run) -> list[tuple[int, int]]:
    """For each event: the number of events directly inside it, and of all inside it."""
    children, inside = [0] * len(events), [0] * len(events)
    for around in surrounding(events):
        for above in around:
            inside[above] += 1
        if around:
            children[around[-1]] += 1
    return list(zip(children, inside, strict=True))


def surrounding(events: Run) -> list[list[int]]:
    """Return for each event the indices of the events around it, the innermost last."""
    running: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
    found = []
    for index, event in enumerate(events):
        around = running[event.direction]
        del around[event.depth :]
        found.append(list(around))
        around.append(index)
    return found


@dataclass
class _Sum:
    """The times of all calls of a layer in one direction of a run."""

    type: str
    calls: int = 0
    time: float = 0.0
    own: float = 0.0


def _sums(run: Run, listed: Sequence[ListedLayer]) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for event, around in zip(run, surrounding(run), strict=True):
        for layer in listed:
            if event.module not in layer.called:
                continue
            total = sums.setdefault((event.direction, layer.name), _Sum(layer.type))
            if event.module == layer.name:
                total.calls += 1
                total.own += event.own
            if all(run[above].module not in layer.called for above in around):  # it is in theirs
                total.time += event.time
    return sums


def _layer_times(runs: Sequence[Run], listed: Sequence[ListedLayer]) -> Iterator[LayerTime]:
    sums = [_sums(run, listed) for run in runs]
    times = {key: Timing.of([total[key].time for total in sums]) for key in sums[0]}
    whole = sum(times[way, ROOT].median for way in (FORWARD, BACKWARD) if (way, ROOT) in times)
    for (direction, module), first in sums[0].items():
        time = times[direction, module]
        own = Timing.of([total[direction, module].own for total in sums])
        share, own_share = (part.median / whole if whole else None for part in (time, own))
        yield LayerTime(direction, module, first.type, first.calls, time, own, share, own_share)


def check_same_calls(runs: Sequence[Run], listed: Sequence[ListedLayer]) -> None:
    """Raise CheckFailed if a later run made other calls of the listed layers than the first one."""
    shown = called_in(listed)
    first, *others = [
        Counter((event.direction, event.module) for event in run if event.module in shown)
        for run in runs
    ]
    for number, other in enumerate(others, start=2):
        for key in first | other:
            if first[key] != other[key]:
                raise CheckFailed(
                    f"The model does not make the same calls in each run: {layer_text(key[1])} has"
                    f" {plural(first[key], f'{key[0]} call')} in the first run and {other[key]} in"
                    f" run {number}.",
                    "Times of different calls have no median. Leave out --repeat to time one run.",
                )


def typical_run(runs: Sequence[Run], listed: Sequence[ListedLayer]) -> tuple[TraceEvent, ...]:
    """Return the calls of the listed layers in the first run, with median times over all runs.

    ``own`` is the median; ``time`` is the sum of ``own`` of the call and of those inside it, so
    that calls still lie within each other. They begin one after another.
    """
    own = defaultdict(list)
    for run in runs:
        for event in run:
            own[_call_key(event)].append(event.own)
    first, around, shown = runs[0], surrounding(runs[0]), called_in(listed)
    medians = [median(own[_call_key(event)]) for event in first]
    widths = list(medians)
    for outer, alone in zip(around, medians, strict=True):
        for above in outer:
            widths[above] += alone
    events, starts = [], [0.0]  # where the next call at each depth begins
    for event, outer, width, alone in zip(first, around, widths, medians, strict=True):
        start = starts[len(outer)]
        starts[len(outer) :] = [start + width, start]
        if event.module in shown:
            depth = sum(first[above].module in shown for above in outer)
            events.append(replace(event, depth=depth, start=start, time=width, own=alone))
    return tuple(events)


def _call_key(event: TraceEvent) -> tuple[str, str, int]:
    return event.direction, event.module, event.call
