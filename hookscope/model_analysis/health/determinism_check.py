"""Whether runs of a model from one seed and one state give the same values."""

from __future__ import annotations

from torch import Tensor

from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import second_run
from hookscope.files.words import number_text
from hookscope.model_analysis.health.compared_runs import Place, run_values, stored_values
from hookscope.results.health import Finding
from hookscope.specs.checks import DETERMINISM, WARNING

RUNS = 3
_HINT = (
    "It may draw from a random generator of its own, keep a value for the next call, read the"
    " time, or use a kernel that adds in any order, which torch.use_deterministic_algorithms(True)"
    " reports."
)


class _Repetition:
    """Compares the values of a run with those of the first."""

    def __init__(self, base: dict[Place, Tensor], number: int) -> None:
        self._base = base
        self._number = number
        self._made: dict[Place, Finding | None] = {}

    def receive(self, place: Place, tensor: Tensor) -> None:
        """Compare a value."""
        self._made[place] = self._difference(place, self._base.get(place), tensor)

    def finding(self) -> Finding | None:
        """Return the first difference in the order of the first run, if there is one."""
        for place in self._base:
            if place not in self._made:
                return self._finding(place, f"is not computed in run {self._number}", 1)
            if self._made[place] is not None:
                return self._made[place]
        return next((finding for finding in self._made.values() if finding), None)

    def _difference(self, place: Place, value: Tensor | None, tensor: Tensor) -> Finding | None:
        if value is None:
            return self._finding(place, f"is computed only in run {self._number}", 1)
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            return self._finding(place, f"has another shape or dtype in run {self._number}", 1)
        differ = (value != tensor) & ~(value.isnan() & tensor.isnan())
        number = int(differ.sum())
        if not number:
            return None
        a, b = (x[differ].cpu().double() for x in (value, tensor))
        count = f"{number:,} of {value.numel():,} entries differ between runs 1 and {self._number}"
        largest = number_text(float((a - b).abs().max()))
        return self._finding(place, f"{count}, by at most {largest}", number)

    def _finding(self, place: Place, message: str, measured: int) -> Finding:
        where = place.source.strip()
        message = f"{where}, {message}" if where else message
        return Finding(DETERMINISM, WARNING, place.module, message, measured, 0, _HINT)


def determinism_findings(prepared: Prepared) -> tuple[list[Finding], str]:
    """Return the first value of a run that differs in a later one; the reason is always empty."""
    base = stored_values(prepared)
    for number in range(2, RUNS + 1):
        repetition = _Repetition(base, number)
        with second_run(0):
            run_values(prepared, repetition.receive)
        finding = repetition.finding()
        if finding is not None:
            return [finding], ""
    return [], ""
