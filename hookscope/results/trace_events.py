"""The calls of modules in a run, as data: one event per call and direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class TraceEvent:
    """One call of a module, in one direction.

    Attributes:
        direction: ``forward`` or ``backward``.
        module: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        call: number of the module's call, from 1; for backward, of the call it belongs to.
        depth: number of listed modules inside which it ran.
        inputs: shapes of the inputs; for backward, of their gradients.
        outputs: shapes of the outputs; for backward, of their gradients.
        bytes: size of ``outputs``.
        start: milliseconds since the run began.
        time: duration in milliseconds.
        own: ``time`` minus that of the modules inside it, listed or not.
    """

    direction: str
    module: str
    type: str
    call: int
    depth: int
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    bytes: int
    start: float
    time: float
    own: float


@dataclass(frozen=True)
class ListedLayer:
    """A layer that a trace lists.

    Attributes:
        name: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        called: the names of the modules whose calls stand for it: itself, or if it is never called,
            as a ``ModuleList`` is not, the nearest ones inside it that are.
    """

    name: str
    type: str
    called: frozenset[str]


def called_in(layers: Iterable[ListedLayer]) -> frozenset[str]:
    """Return the names of all modules whose calls stand for ``layers``."""
    return frozenset().union(*(layer.called for layer in layers))
