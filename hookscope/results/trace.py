"""A trace: all calls of modules in a run, or in repeated runs, also in Chrome's format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import TRACE_MARK, check_ending
from hookscope.files.words import shape_text
from hookscope.results.layer_times import LayerTimes
from hookscope.results.records import Coverage
from hookscope.results.result import Result
from hookscope.results.trace_events import BACKWARD, FORWARD, TraceEvent


@dataclass(frozen=True)
class Trace(Result):
    """All events of a run: those of the forward pass, then those of the backward pass.

    Attributes:
        events: in the order in which they began. Of repeated runs, the calls with median times; see
            ``hookscope.results.layer_times.typical_run``.
        coverage: which of the selected modules ran.
        metadata: where they came from: model, inputs, seed, versions, loss.
        output: what the model returned.
        times: the statistics of each layer, if the run was repeated.
    """

    view = "trace"

    events: tuple[TraceEvent, ...]
    coverage: Coverage
    metadata: dict[str, Any]
    output: Any = field(default=None, repr=False, compare=False)
    times: LayerTimes | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the metadata's keys, milliseconds of each pass, events, coverage, statistics."""
        return {
            **self.metadata,
            "milliseconds": {name: self.total(name) for name in ("forward", "backward")},
            "events": [asdict(event) for event in self.events],
            "coverage": {"matched": self.coverage.matched, **self.coverage.to_json()},
            **({} if self.times is None else {"times": asdict(self.times)}),
        }

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        counts = [sum(e.direction == way for e in self.events) for way in (FORWARD, BACKWARD)]
        return f"<Trace of {model}: {counts[0]} forward and {counts[1]} backward calls>"

    def total(self, direction: str) -> float:
        """Milliseconds of one direction: the sum over its outermost events, or their median."""
        if self.times is not None:
            return self.times.total(direction)
        return sum(e.time for e in self.events if e.direction == direction and not e.depth)

    def to_chrome(self) -> dict[str, Any]:
        """Return a trace in Chrome's format, for https://ui.perfetto.dev.

        Each direction is a thread. Each event is a pair of ``B`` and ``E`` with ``ts`` in
        microseconds, nested like the modules.
        """
        model = self.metadata.get("model", {}).get("spec", "")
        names = [("process_name", 0, f"hookscope {model}".strip())]
        names += [("thread_name", i, name) for i, name in enumerate((FORWARD, BACKWARD), start=1)]
        events = [
            {"name": what, "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}
            for what, tid, name in names
        ]
        for tid, direction in enumerate((FORWARD, BACKWARD), start=1):
            events += _pairs([e for e in self.events if e.direction == direction], tid)
        other = {**self.metadata.get("versions", {}), "model": model}
        return {
            **{TRACE_MARK[0]: {TRACE_MARK[1]: other.pop("hookscope", ""), **other}},
            "displayTimeUnit": "ms",
            "traceEvents": events,
        }

    def save_chrome(self, path: str | os.PathLike[str]) -> int:
        """Write ``to_chrome()`` to a JSON file; return its size in bytes.

        Raises:
            RequestError: the name ends neither in ``.json`` nor in nothing.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        check_ending(Path(path), ".json")
        return write_text(path, strict_json.dumps(self.to_chrome()))


def _pairs(events: list[TraceEvent], tid: int) -> Iterator[dict[str, Any]]:
    """The beginnings and ends of ``events`` in the order of time."""
    running: list[TraceEvent] = []
    for event in [*events, None]:
        while running and (event is None or running[-1].depth >= event.depth):
            last = running.pop()
            yield {"name": last.module, "ph": "E", "pid": 1, "tid": tid, "ts": _end(last)}
        if event is not None:
            running.append(event)
            yield {
                "name": event.module,
                "cat": event.direction,
                "ph": "B",
                "pid": 1,
                "tid": tid,
                "ts": round(event.start * 1000, 3),
                "args": {
                    "type": event.type,
                    "call": event.call,
                    "inputs": list(map(shape_text, event.inputs)),
                    "outputs": list(map(shape_text, event.outputs)),
                    "bytes": event.bytes,
                },
            }


def _end(event: TraceEvent) -> float:
    return round((event.start + event.time) * 1000, 3)
