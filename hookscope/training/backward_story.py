"""Why a backward pass of a program failed: its step runs again in a sealed copy of the process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from traceback import walk_tb

from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    Trial,
    tried_failure,
)
from hookscope.execution.backward_failures.module_names import names_in_variables
from hookscope.execution.backward_failures.observed_failure import FailureObserver
from hookscope.execution.backward_failures.source_patches import SourcePatch
from hookscope.execution.backward_failures.unreduced_gradients import diagnose_reduction
from hookscope.results.failure import DDP, BackwardFailure, kind_of_failure
from hookscope.tensors.torch_internals import shared_store
from hookscope.training import sealed_process
from hookscope.training.failed_step import StepCode, steps_of
from hookscope.training.sealed_process import NoSealedProcess, run_sealed

_PATIENCE = 120.0  # seconds for all runs together
_TELLERS, _TOLD = "hookscope/failure/tellers", "hookscope/failure/told"


def explain_program_failure(error: BaseException, script: str) -> BackwardFailure | None:
    """Return the explanation of a backward pass that failed; None for any other error.

    Args:
        error: the exception that ends the program, with its traceback.
        script: the file of the program; empty if it is not one file.

    Raises:
        NoSealedProcess: nothing can be run again here.
    """
    kind = kind_of_failure(error)
    if not kind:
        return None
    if kind == DDP and is_told_elsewhere():
        return None
    if kind == DDP and not _can_seal():
        known = diagnose_reduction(error, None)
        return None if known is None else tried_failure(known, lambda patches: known)
    sealed_process.check_can_seal()
    end = time.monotonic() + _PATIENCE
    found: list[tuple[Diagnosis, Trial]] = []
    for step in steps_of(error, script):
        if kind == DDP:
            if step.loop is None:  # the script would wait for other processes
                break
            step = step.whole
        trial = partial(_in_copy, step, error, end)
        try:
            diagnosis = trial([])
        except TimeoutError as late:
            if not found:
                raise NoSealedProcess("its step takes too long to run again") from late
            break
        if diagnosis is not None and diagnosis.kind == kind:
            found.append((diagnosis, trial))
            if diagnosis.is_complete:
                break
    return tried_failure(*found[-1]) if found else None


def is_told_elsewhere() -> bool:
    """Return whether another process of a distributed program explains the same failure.

    If so, this one waits until it has, because the end of one process ends the others.
    """
    with suppress(Exception):  # there is no store, or its process has ended
        if (store := shared_store()) is not None and store.add(_TELLERS, 1) > 1:
            store.wait([_TOLD], timedelta(seconds=_PATIENCE))
            return True
        return False
    return False


def let_others_end() -> None:
    """Let the processes end that wait for the explanation of this one."""
    with suppress(Exception):
        if (store := shared_store()) is not None:
            store.set(_TOLD, "1")


def _can_seal() -> bool:
    try:
        sealed_process.check_can_seal()
    except NoSealedProcess:
        return False
    return True


def _in_copy(
    step: StepCode, error: BaseException, end: float, patches: Sequence[SourcePatch]
) -> Diagnosis | None:
    try:
        return run_sealed(partial(_run_again, step, error, patches), end - time.monotonic())
    except NoSealedProcess:
        return Diagnosis("")


def _run_again(
    step: StepCode, error: BaseException, patches: Sequence[SourcePatch]
) -> Diagnosis | None:
    """Run a step with changes; None if it is right. This changes the variables of the program."""
    namespaces = [frame.f_locals for frame, _ in walk_tb(error.__traceback__)]
    observer = FailureObserver(kind_of_failure(error))
    raised: BaseException | None = None
    try:
        with observer.observing():
            step.run(patches)
    except BaseException as again:
        raised = again
        namespaces += [frame.f_locals for frame, _ in walk_tb(again.__traceback__)]
    return observer.diagnose(raised, names_in_variables([*reversed(namespaces)]), error)
