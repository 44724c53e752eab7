"""The explanation of a backward pass of a prepared model that failed: the pass runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import ForwardError, LossError
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    tried_failure,
)
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.backward_failures.observed_failure import FailureObserver
from hookscope.execution.backward_failures.source_patches import SourcePatch, patched
from hookscope.execution.failures.trials import is_distributed, on_meta_device, quiet
from hookscope.execution.forward import forward_error
from hookscope.execution.objective import Objective, requiring_grad
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.capture import Capture
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import layers_of
from hookscope.results.failure import NAN, NO_GRADIENT, BackwardFailure, kind_of_failure
from hookscope.results.records import Record
from hookscope.specs.model_spec import LIVE
from hookscope.specs.patterns import ROOT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import TensorPath, walk


@contextmanager
def explain_backward_errors(prepared: Prepared, objective: Objective) -> Iterator[None]:
    """Add an explanation to the error of a backward pass, for which the model runs again.

    A loss without a gradient is such an error if code of the model has cut it off.

    Enter this context before those that change the state of the model, which is then restored.
    """
    try:
        yield
    except ForwardError as error:
        if error.failure is None and error.exception is not None:
            kind = kind_of_failure(error.exception)
            error.failure = _explained(kind, prepared, objective)
        raise
    except LossError as error:
        is_trained = any(one.requires_grad for one in prepared.module.parameters())
        failure = _explained(NO_GRADIENT, prepared, objective) if is_trained else None
        if failure is None:
            raise
        cause = RuntimeError("the loss does not require grad and does not have a grad_fn")
        failed = forward_error(prepared.module, prepared.value, cause, during="backward")
        failed.failure = failure
        raise failed from error


def explain_nonfinite(
    prepared: Prepared, objective: Objective, capture: Capture
) -> BackwardFailure | None:
    """Return where gradients that are not finite began; None if all that are recorded are finite.

    The model runs again if one is not, also a live one, whose state is restored.
    """
    if all(_is_finite(record, capture[record.key]) for record in capture.records):
        return None
    return _explained(NAN, prepared, objective)


def _is_finite(record: Record, tensor: Tensor) -> bool:
    """Whether a gradient is finite; its norm is cheaper than all of its statistics."""
    is_plain = tensor.layout is torch.strided and tensor.is_floating_point()
    if is_plain and bool(torch.linalg.vector_norm(tensor).isfinite()):
        return True
    return not (record.stats.nan or record.stats.inf)


def _explained(kind: str, prepared: Prepared, objective: Objective) -> BackwardFailure | None:
    """The explanation of a kind of failure; None if there is none."""
    if not kind or objective.penalty or is_distributed():
        return None
    with suppress(Exception):  # the error itself matters more than its explanation
        # The code of a live model may have side effects: a copy without values is run if that will
        # do.
        is_copy = prepared.loaded.source == LIVE and kind != NAN
        run = on_meta_device(prepared) if is_copy else prepared
        for of_input in (False, True):  # what fails may be the gradient of the input
            trial = partial(_try, run, None if is_copy else objective, kind, of_input)
            diagnosis = trial([])
            if diagnosis is not None and diagnosis.kind == kind:
                is_ours = prepared.loaded.source != LIVE  # another's code is not changed
                return tried_failure(diagnosis, trial) if is_ours else diagnosis.failure()
    return None


def _try(
    run: Prepared,
    objective: Objective | None,
    kind: str,
    of_input: bool,
    patches: Sequence[SourcePatch],
) -> Diagnosis | None:
    """Run forward and backward with changes; None if both are right."""
    inputs: list[tuple[TensorPath, Tensor]] = []
    layers = layers_of(run.module)
    names = {one.module: "" if one.name == ROOT else one.name for one in layers}
    observer = FailureObserver(kind)
    failed: Exception | None = None
    with (
        quiet(),
        run.preserved(),
        signal_safe(torch.inference_mode(False)),
        grad_mode(True),
        forward_interventions(run.interventions, run.module, run.seed),
        patched(patches),
    ):
        try:
            with observer.observing():
                args, kwargs = run.fresh_call()
                if of_input:
                    args, kwargs = requiring_grad((args, kwargs), inputs)
                output = run.run(args, kwargs)
                _loss_of(run, objective, output).backward()
        except Exception as error:
            failed = error
        return observer.diagnose(failed, ModuleNames(names, [one for _, one in inputs]))


def _loss_of(run: Prepared, objective: Objective | None, output: Any) -> Tensor:
    """The loss; for a copy without values, which no loss can be computed of, a sum."""
    if objective is not None:
        return objective.compute(run, output).value
    floating = [one for _, one in walk(output) if one.is_floating_point()]
    parts = [one.abs().sum() for one in floating if one.requires_grad] or [
        one.sum() for one in floating
    ]
    return torch.stack(parts).sum()
