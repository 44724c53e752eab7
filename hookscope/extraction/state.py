"""How far a run over a dataset is, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Times:
    """Seconds that the run waited for each of its parts."""

    read: float = 0.0
    forward: float = 0.0
    write: float = 0.0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count what passes in the block for one of the parts."""
        begun = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - begun)

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; count what passes before each comes."""
        source = iter(batches)
        while True:
            with self.of("read"):
                batch = next(source, None)
            if batch is None:
                return
            yield batch


@dataclass
class State:
    """How far a run is: rows done of those to be done, bytes written, and where the time went."""

    total: int
    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    times: Times = field(default_factory=Times)
    begun: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun
