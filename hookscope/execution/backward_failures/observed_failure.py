"""An observed pass, and the diagnosis of its failure."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hookscope.execution.backward_failures.backward_watch import BackwardWatch
from hookscope.execution.backward_failures.custom_functions import (
    diagnose_custom_function,
    failed_node,
)
from hookscope.execution.backward_failures.cut_chains import CutWatch, diagnose_no_gradient
from hookscope.execution.backward_failures.diagnosis import Diagnosis, diagnose_in_place
from hookscope.execution.backward_failures.graph_observer import GraphObserver
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.backward_failures.nonfinite_gradients import diagnose_nonfinite
from hookscope.files.signal_safety import signal_safe
from hookscope.results.failure import (
    IN_PLACE,
    NAN,
    NO_GRADIENT,
    SHAPE,
    kind_of_failure,
)


class FailureObserver:
    """Observes a pass that is expected to fail in a way."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._graph = GraphObserver()
        self._cuts = CutWatch()
        self._backward = BackwardWatch()

    def observing(self) -> AbstractContextManager[object]:
        """Return the context in which the pass runs."""
        if self._kind == NO_GRADIENT:
            return signal_safe(self._cuts)
        return self._backward if self._kind in (NAN, SHAPE) else self._graph

    def diagnose(self, error: BaseException | None, names: ModuleNames) -> Diagnosis | None:
        """Return what is known of the pass: None if it was right, of no kind if nothing is."""
        if self._kind == NAN and (found := diagnose_nonfinite(self._backward, names)):
            return found
        if error is None:
            return None
        return self._of_error(error, names) or Diagnosis("")

    def _of_error(self, error: BaseException, names: ModuleNames) -> Diagnosis | None:
        kind = kind_of_failure(error)
        if kind != self._kind:
            return None
        if kind == IN_PLACE:
            return diagnose_in_place(self._graph, names)
        if kind == NO_GRADIENT:
            return diagnose_no_gradient(error, self._cuts, names)
        if kind == SHAPE:
            ended = {run.node for run in self._backward.runs}
            node = failed_node(error, [one for one in self._backward.nodes if one not in ended])
            if node is not None:
                return diagnose_custom_function(error, node, self._backward.site_of(node), names)
        return None
