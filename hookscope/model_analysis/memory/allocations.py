"""The allocations of a run in order, and the moment at which most of them are alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from hookscope.results.memory import BACKWARD, FORWARD, STEP, MemoryParts, PeakMoment

PLACEHOLDER = "placeholder"  # stands for a parameter or a gradient that is in the log itself
PHASES = (FORWARD, BACKWARD, STEP)
LASTING = ("parameters", "buffers", "inputs", "optimizer")  # allocated before a step begins


@dataclass(slots=True)
class Allocation:
    """One storage: its bytes, who allocated it, and what it is for."""

    size: int
    layer: str
    phase: str
    operator: str
    kind: str = "temporary"


@dataclass(frozen=True)
class Peak:
    """The largest sum of allocations, when it is reached, and its parts by layer."""

    size: int
    moment: PeakMoment
    layers: dict[str, MemoryParts]


@dataclass(frozen=True)
class AllocationLog:
    """Allocations, and the events of each phase: the number of one that begins or ends."""

    allocations: list[Allocation] = field(default_factory=list)
    events: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))

    def followed_by(self, other: AllocationLog) -> AllocationLog:
        """Return this log, and after it the one of an optimizer's step."""
        shift, events = len(self.allocations), {phase: [*self.events[phase]] for phase in PHASES}
        events[STEP] += [(number + shift, begins) for number, begins in other.events[STEP]]
        return AllocationLog([*self.allocations, *other.allocations], events)

    def peak(self) -> Peak:
        """Return the peak of a step of which everything that lasts is there from the beginning."""
        lasting = {n for n, one in enumerate(self.allocations) if one.kind in LASTING}
        size = most = sum(self.allocations[n].size for n in lasting)
        at, last = 0, -1
        for count, (number, begins) in enumerate(self._timeline(), 1):
            size += self.allocations[number].size * (1 if begins else -1)
            if size > most:
                most, at, last = size, count, number
        live = set(lasting)
        for (number, begins), _ in zip(self._timeline(), range(at), strict=False):
            (live.add if begins else live.discard)(number)
        parts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for number in live:
            one = self.allocations[number]
            parts[one.layer][one.kind] += one.size
        moment = PeakMoment(FORWARD, "", "")
        if at:
            one = self.allocations[last]
            moment = PeakMoment(one.phase, one.layer, one.operator)
        return Peak(most, moment, {layer: MemoryParts(**sizes) for layer, sizes in parts.items()})

    def line_to(self, other: AllocationLog, step: int) -> Callable[[int], AllocationLog] | None:
        """Return the log of any batch, by how many samples it has more than this one.

        ``other`` is that of a batch with ``step`` samples more. None if the two runs differ in more
        than sizes, or a size does not grow evenly.
        """
        pairs = [
            (a.size, b.size) for a, b in zip(self.allocations, other.allocations, strict=False)
        ]
        same = len(self.allocations) == len(other.allocations) and self.events == other.events
        if not same or any((after - before) % step for before, after in pairs):
            return None

        def at(more: int) -> AllocationLog:
            sizes = (before + (after - before) // step * more for before, after in pairs)
            grown = [
                replace(one, size=size) for one, size in zip(self.allocations, sizes, strict=True)
            ]
            return AllocationLog(grown, self.events)

        return at

    def _timeline(self) -> Iterator[tuple[int, bool]]:
        """The events of a step in the order of its phases, without those of what lasts."""
        for phase in PHASES:
            for number, begins in self.events[phase]:
                if self.allocations[number].kind not in (*LASTING, PLACEHOLDER):
                    yield number, begins
