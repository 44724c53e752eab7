"""Whether runs of a model from one seed and one state give the same values, here and elsewhere."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property

from torch import Tensor

from hookscope.errors import HookscopeError, LossError
from hookscope.execution.objective import Objective
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import second_run
from hookscope.files.words import number_text
from hookscope.model_analysis.health.compared_runs import (
    FROM_OUTSIDE,
    Place,
    differs_before,
    run_values,
    stored_values,
)
from hookscope.model_analysis.health.new_process import (
    STATE,
    hash_of,
    hashes_in_new_process,
    state_hashes,
)
from hookscope.results.health import Finding
from hookscope.specs.checks import DETERMINISM, NOTE, WARNING
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import Request
from hookscope.specs.tensor_key import is_gradient

log = logging.getLogger("hookscope")

RUNS = 3  # in this process
_IN_RUNS = (
    "It may draw from a random generator of its own, keep a value for the next call, read the"
    " time, or use a kernel that adds in any order, which torch.use_deterministic_algorithms(True)"
    " reports."
)
_IN_PROCESSES = (
    "These differ between processes: the order of a set of texts, the time, memory that was never"
    " written, and weights from a random generator of their own."
)


def determinism_findings(
    prepared: Prepared, request: Request, objective: Objective | None
) -> tuple[list[Finding], str]:
    """Return the first value of a run that differs in a later one; the reason is always empty.

    With an objective, gradients are compared too, if the model has any. A model that is an object
    is not compared with one in a new process.
    """
    try:
        base = stored_values(prepared, objective)
    except LossError as error:
        if request.loss is not None and not request.loss.is_default:
            raise
        log.info("determinism: gradients are not compared. %s", error.message)
        objective = None
        base = stored_values(prepared)
    for number in range(2, RUNS + 1):
        repetition = _Repetition(base, number)
        with second_run(0):
            run_values(prepared, repetition.receive, objective)
        finding = repetition.finding(prepared)
        if finding is not None:
            return [finding], ""
    if not request.model.named:
        log.info("determinism: not compared with a new process, because the model is an object")
        return [], ""
    gradients = objective is not None
    return _compare_with_new_process(prepared, request, base, gradients=gradients), ""


class _Repetition:
    """Compares the values of a run with those of the first."""

    def __init__(self, base: dict[Place, Tensor], number: int) -> None:
        self._base = base
        self._number = number
        self._made: dict[Place, str] = {}  # how it differs, or an empty text

    def receive(self, place: Place, tensor: Tensor) -> None:
        """Compare a value."""
        self._made[place] = self._difference(self._base.get(place), tensor)

    @cached_property
    def _differences(self) -> dict[Place, str]:
        """How values differ, in the order of the first run."""
        missing = dict.fromkeys(self._base, f"not computed in run {self._number}")
        return {place: text for place, text in (missing | self._made).items() if text}

    def finding(self, prepared: Prepared) -> Finding | None:
        """Return the first difference, if there is one, and whether PyTorch computed it."""
        if not self._differences:
            return None
        place, difference = next(iter(self._differences.items()))
        finding = _finding(place, difference, len(self._differences), _IN_RUNS)
        if is_gradient(place.kind) or not differs_before(prepared, prepared, place):
            return finding
        message = f"gets other values from outside PyTorch{place.source}: {difference}"
        return replace(finding, message=message, hint=FROM_OUTSIDE)

    def _difference(self, value: Tensor | None, tensor: Tensor) -> str:
        if value is None:
            return f"computed only in run {self._number}"
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            return f"another shape or dtype in run {self._number}"
        differ = (value != tensor) & ~(value.isnan() & tensor.isnan())
        number = int(differ.sum())
        if not number:
            return ""
        a, b = (x[differ].cpu().double() for x in (value, tensor))
        count = f"{number:,} of {value.numel():,} entries differ between runs 1 and {self._number}"
        return f"{count}, by at most {number_text(float((a - b).abs().max()))}"


def _compare_with_new_process(
    prepared: Prepared, request: Request, base: dict[Place, Tensor], *, gradients: bool
) -> list[Finding]:
    here = state_hashes(prepared) | {place: hash_of(value) for place, value in base.items()}
    try:
        there = hashes_in_new_process(request, gradients=gradients)
    except HookscopeError as error:
        return [Finding(DETERMINISM, NOTE, ROOT, f"not compared: {error.message}", 0)]
    different = [place for place in {**here, **there} if here.get(place) != there.get(place)]
    if not different:
        return []
    return [_finding(different[0], "other values in a new process", len(different), _IN_PROCESSES)]


def _finding(place: Place, difference: str, number: int, hint: str) -> Finding:
    is_named = place.kind == STATE or is_gradient(place.kind)
    where = f"{place.what}: " if is_named else f"{place.source.strip()}: "
    message = f"{where.removeprefix(': ')}{difference}"
    return Finding(DETERMINISM, WARNING, place.module, message, number, 0, hint)
