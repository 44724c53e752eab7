"""Why a backward pass of a program failed: its step runs again in a sealed copy of the process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from traceback import walk_tb

from torch import nn

from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    Trial,
    tried_failure,
)
from hookscope.execution.backward_failures.observed_failure import FailureObserver
from hookscope.execution.backward_failures.source_patches import SourcePatch
from hookscope.results.failure import BackwardFailure, kind_of_failure
from hookscope.training import sealed_process
from hookscope.training.failed_step import StepCode, module_names, steps_of
from hookscope.training.sealed_process import NoSealedProcess, run_sealed

_PATIENCE = 120.0  # seconds for all runs together


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
    sealed_process.check_can_seal()
    end = time.monotonic() + _PATIENCE
    found: list[tuple[Diagnosis, Trial]] = []
    for step in steps_of(error, script):
        trial = partial(_in_copy, step, error, end)
        diagnosis = trial([])
        if diagnosis is not None and diagnosis.kind == kind:
            found.append((diagnosis, trial))
            if diagnosis.is_complete:
                break
    return tried_failure(*found[-1]) if found else None


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
    """Run a step with changes; None if it succeeds. This changes the variables of the program."""
    namespaces = [frame.f_locals for frame, _ in walk_tb(error.__traceback__)]
    observer = FailureObserver(kind_of_failure(error))
    try:
        with observer.observing():
            step.run(patches)
    except BaseException as again:
        namespaces += [frame.f_locals for frame, _ in walk_tb(again.__traceback__)]
        names = module_names([*reversed(namespaces)])
        return observer.diagnose(again, partial(_name_of, names))
    return None


def _name_of(names: dict[nn.Module, str], module: nn.Module) -> str:
    return names.get(module, type(module).__name__)
