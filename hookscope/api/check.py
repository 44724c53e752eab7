"""Diagnose a model, a training run or a file of weights."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

from hookscope.api.public import PLAIN_RUN, Given, Only, public
from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.file_analysis.run_findings.run_health import check_run, check_runs
from hookscope.file_analysis.weight_findings import check_weights
from hookscope.files.output_path import runs_in
from hookscope.files.progress import NamedProgress
from hookscope.results.health import Health
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CheckOptions, RunCheckOptions, WeightCheckOptions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import (
    InputRequest,
    LossRequest,
    ModelRequest,
    Request,
    chosen_options,
)
from hookscope.specs.run_checks import RUN_OPTIONS, check_run_options
from hookscope.specs.run_options import RunOptions
from hookscope.specs.weight_checks import WEIGHT_OPTIONS
from hookscope.specs.weight_options import check_model_options
from hookscope.stores.runs.training_run import is_run_folder
from hookscope.stores.weights.weight_set import WeightSet

if TYPE_CHECKING:
    import torch
    from torch import nn


@public
def check(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    options: Given[CheckOptions],
    loss: Annotated[LossRequest, Only("forward_only", "loss", "target", "reduction", "raw")],
    input: InputRequest,
    loading: Given[ModelRequest],
    run: Annotated[RunOptions, PLAIN_RUN],
    progress: NamedProgress | None = None,
) -> Health:
    """Run a model forward and a loss backward once, and diagnose it.

    Tensors are measured during the run; no activation or gradient is stored.

    The folder of a training run that ``hookscope run`` wrote is checked without torch: its curves
    are compared with the thresholds of ``hookscope.specs.run_checks.RunThresholds``. Of the
    keywords, only ``only``, ``skip``, ``dead``, ``vanishing`` and ``floor`` apply to it.

    A file of weights is checked without a model: its tensors are compared with the thresholds of
    ``hookscope.specs.weight_checks.WeightThresholds``. The keywords ``only``, ``skip`` and
    ``trust`` apply to it, and no others.

    Args:
        model: as for ``capture``, or the folder of a run or of several, or weights: a file, a
            folder or an index, or the result of ``load``.
        forward_only: run no backward pass.
        loss: as for ``grads``. None, without a target: the output along a random direction, which
            is defined for any model.
        trust: as for ``capture``; of a pickled model, build it, which runs code, and check its
            weights.
        progress: of weights: called with the megabytes that were read, the total, and the name of
            the tensor.

    Raises:
        LossError: the loss or its target does not fit the output.
        RequestError: there is no such check, a threshold is out of range, or an option is given
            that a run has no use for.
        ResultsFileError: a file of a run is damaged.
        WeightsFileError: a file of weights is damaged.
        CheckFailed: hooks change the output of the model.
        ForwardError: the model raised SystemExit. Another error of the model is a finding.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> _ = torch.nn.init.constant_(net[0].bias, -100)
        >>> [(f.check, f.layer) for f in hookscope.check(net, input=torch.ones(2, 4)).findings]
        [('dead', '1'), ('vanishing', '0')]
    """
    runs = runs_in(model) if isinstance(model, str | os.PathLike) else []
    is_run = bool(runs) or (isinstance(model, str | os.PathLike) and is_run_folder(model))
    label = "" if is_run else label_of_weights(model)
    if is_run or label:
        of_models = CheckOptions(**options.part("saturated", "margin", "exploding", "ceiling"))
        parts = (of_models, loss, input, run)
        chosen = [name for part in parts for name in chosen_options(part)]
        chosen += ["input"] * (input.input is not None)
        chosen += [name for name in loading.chosen if name != "trust" or is_run]
        if is_run:
            check_run_options(model, chosen)
            folder = cast("str | os.PathLike[str]", model)
            of_run = RunCheckOptions(**options.part(*RUN_OPTIONS))
            return check_runs(runs, of_run) if runs else check_run(folder, of_run)
        chosen += chosen_options(CheckOptions(**options.part("dead", "vanishing", "floor")))
        check_model_options(chosen, WEIGHT_OPTIONS, label)
        # Before the file is opened, which may run code.
        checks = WeightCheckOptions(**options.part("only", "skip"))
        weights = cast("WeightSet", as_weights(model, loading["trust"]))
        return check_weights(weights, checks, progress)
    checks_of_model = options.make()
    model_request = loading.make(model=model)
    if model_request.source == ONNX and loss.is_default:  # it has no gradients
        loss = replace(loss, forward_only=True)
    request = Request("check", model_request, input=input, run=run, loss=loss)
    from hookscope.model_analysis.health.model_health import check_model

    return check_model(request, checks_of_model)
