"""The explanation of a backward pass of a prepared model that failed: the pass runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import ForwardError
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    tried_failure,
)
from hookscope.execution.backward_failures.observed_failure import FailureObserver
from hookscope.execution.backward_failures.source_patches import SourcePatch, patched
from hookscope.execution.failures.trials import is_distributed, on_meta_device, quiet
from hookscope.execution.objective import Objective
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import layers_of
from hookscope.results.failure import BackwardFailure, kind_of_failure
from hookscope.specs.model_spec import LIVE
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import walk


@contextmanager
def explain_backward_errors(prepared: Prepared, objective: Objective) -> Iterator[None]:
    """Add an explanation to the error of a backward pass, for which the model runs again.

    Enter this context before those that change the state of the model, which is then restored.
    """
    try:
        yield
    except ForwardError as error:
        is_backward = error.failure is None and error.exception is not None
        if is_backward and not objective.penalty and not is_distributed():
            with suppress(Exception):  # the error itself matters more than its explanation
                error.failure = _explained(error.exception, prepared, objective)
        raise


def _explained(
    error: BaseException | None, prepared: Prepared, objective: Objective
) -> BackwardFailure | None:
    kind = kind_of_failure(error) if error is not None else ""
    if not kind:
        return None
    # The code of a live model may have side effects: a copy without values is run.
    run = on_meta_device(prepared) if prepared.loaded.source == LIVE else prepared
    trial = partial(_try, run, objective, kind)
    diagnosis = trial([])
    if diagnosis is None or diagnosis.kind != kind:
        return None
    return tried_failure(diagnosis, trial)


def _try(
    run: Prepared, objective: Objective, kind: str, patches: Sequence[SourcePatch]
) -> Diagnosis | None:
    """Run forward and backward with changes; None if both succeed."""
    names = {layer.module: layer.name for layer in layers_of(run.module)}
    observer = FailureObserver(kind)
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
                output = run.run(*run.fresh_call())
                _loss_of(run, objective, output).backward()
        except Exception as error:
            return observer.diagnose(error, partial(_name_of, run.module, names))
    return None


def _loss_of(run: Prepared, objective: Objective, output: Any) -> Tensor:
    """The loss; for a copy without values, which no loss can be computed of, a sum."""
    if run.loaded.source != LIVE:
        return objective.compute(run, output).value
    parts = [tensor.abs().sum() for _, tensor in walk(output) if tensor.requires_grad]
    return torch.stack(parts).sum()


def _name_of(model: nn.Module, names: dict[nn.Module, str], module: nn.Module) -> str:
    """The name of a module in the model; the class for the model itself and for others."""
    if module is model or module not in names:
        return type(module).__name__
    return names[module]
