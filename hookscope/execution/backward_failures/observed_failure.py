"""An observed pass, and the diagnosis of its failure."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hookscope.execution.backward_failures.cut_chains import CutWatch, diagnose_no_gradient
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    NameOf,
    diagnose_in_place,
)
from hookscope.execution.backward_failures.freed_graphs import diagnose_freed
from hookscope.execution.backward_failures.graph_observer import GraphObserver
from hookscope.files.signal_safety import signal_safe
from hookscope.results.failure import FREED, IN_PLACE, NO_GRADIENT, kind_of_failure


class FailureObserver:
    """Observes a pass that is expected to fail with a kind of error."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._graph = GraphObserver()
        self._cuts = CutWatch()

    def observing(self) -> AbstractContextManager[object]:
        """Return the context in which the pass runs."""
        return signal_safe(self._cuts) if self._kind == NO_GRADIENT else self._graph

    def diagnose(self, error: BaseException, name_of: NameOf) -> Diagnosis:
        """Return what is known of the error of the pass; of no kind if nothing is."""
        kind = kind_of_failure(error)
        found: Diagnosis | None = None
        if kind == IN_PLACE:
            found = diagnose_in_place(self._graph, name_of)
        elif kind == FREED:
            found = diagnose_freed(error, self._graph, name_of)
        elif kind == NO_GRADIENT:
            found = diagnose_no_gradient(error, self._cuts, name_of)
        return found or Diagnosis("")
