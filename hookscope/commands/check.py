"""Diagnose a model, a training run or a file of weights."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.output_file import Output, without_output
from hookscope.cli.runner import checked_job, job_step
from hookscope.commands.subject import as_weights, find_subject
from hookscope.errors import FAILED
from hookscope.files.output_path import report_ending, runs_in
from hookscope.files.progress_types import NamedProgress
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CheckOptions, RunCheckOptions, WeightCheckOptions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.public import PLAIN_RUN, Only, handles, public
from hookscope.specs.request import (
    InputRequest,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.subject_kinds import MODELS, RUNS, WEIGHTS
from hookscope.specs.weight_options import WeightTrust

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookscope.results.health import Health
    from hookscope.stores.weights.weight_set import WeightSet


@public
def check(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    options: CheckOptions,
    loss: Annotated[LossRequest, Only("forward_only", "loss", "target", "reduction", "raw")],
    input: InputRequest,
    loading: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    progress: NamedProgress | None = None,
) -> Health:
    """Run a model forward and a loss backward once, and diagnose it.

    Tensors are measured during the run; no activation or gradient is stored. The checks ``batch``
    and ``determinism`` store the activations of a run, with which others are compared.

    The folder of a training run that ``hookscope run`` wrote is checked without torch: its curves
    are compared with the thresholds of ``hookscope.specs.checks.RunThresholds``. Of the
    keywords, only ``only``, ``skip``, ``dead``, ``vanishing``, ``floor`` and ``live`` apply to it.
    With ``live`` the next step of a training that runs now is checked, and it is not changed.

    A file of weights is checked without a model: its tensors are compared with the thresholds of
    ``hookscope.specs.checks.WeightThresholds``. The keywords ``only``, ``skip`` and
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
    if loading.source == ONNX and loss.is_default:  # it has no gradients
        request = replace(request, loss=replace(loss, forward_only=True))
    from hookscope.model_analysis.health.model_health import check_model

    return check_model(request, options)


check.find_subject = find_subject


@handles(check, RUNS)
def check_training_run(model: str | os.PathLike[str], *, options: RunCheckOptions) -> Health:
    """Check the curves of a training run, or of every run in a folder."""
    if options.live:
        return _check_next_step(model, options)
    from hookscope.file_analysis.run_findings.run_health import check_run, check_runs

    runs = runs_in(model)
    return check_runs(runs, options) if runs else check_run(model, options)


def _check_next_step(run: str | os.PathLike[str], options: RunCheckOptions) -> Health:
    from hookscope.specs.program_options import ProgramOptions
    from hookscope.stores.runs.live_socket import ask, read_result

    health: Health
    health, _ = ask(run, ProgramOptions(check=True), (), read_result)
    found = tuple(one for one in health.findings if one.check in options.names)
    return replace(health, findings=found, checks=options.names)


@handles(check, WEIGHTS)
def check_file_of_weights(
    model: str | os.PathLike[str] | WeightSet,
    *,
    options: WeightCheckOptions,
    pickled: WeightTrust,
    progress: NamedProgress | None = None,
) -> Health:
    """Check the tensors of weights."""
    from hookscope.file_analysis.weight_findings import check_weights

    return check_weights(cast("WeightSet", as_weights(model, pickled.trust)), options, progress)


EXAMPLES = (
    Example("hookscope check resnet18", "Untrained weights, on noise."),
    Example(
        "hookscope check sample_models/digits.py:trained --skip saturated",
        "A trained model, without one of the checks.",
    ),
    Example(
        "hookscope check sample_models/digits.safetensors",
        "The tensors of a file of weights.",
    ),
    Example(
        "hookscope check sample_models/digits_scripted.pt --only nan,inf -o digits.sarif",
        "Two checks of a scripted file, with a report for code scanning.",
    ),
)

OUTPUT = Output(
    "Also write the findings to a .sarif (SARIF 2.1.0) or .xml (JUnit) file.", report_ending
)


@command(
    "check",
    options.model,
    options_of(CheckOptions),
    options_of(LossRequest, "forward_only"),
    options.loss_of_any_model,
    options.inputs,
    options.texts,
    options.run,
    OUTPUT.options,
    examples=EXAMPLES,
    main="only forward-only loss target input model-arg output",
    also="shape skip",
    topics="checks model-specs inputs weights losses",
)
def check_command(ctx: click.Context, **values: Any) -> None:
    """Diagnose a model, a training run or weights: NaN, dead units, ...

    Runs the model forward and a loss backward once, and checks activations, gradients and
    parameters without storing them. Each finding names the layer, the measured value and the
    threshold. The default loss is the output along a random direction (seed 0). Exit status: 0 if
    there is no error and no warning, 1 otherwise.

    Three checks run the model several times, and only if --only names them: whether rows depend on
    their batch (batch), whether runs from one seed differ (determinism), and attention masks that
    leave a row no key (mask).

    The folder of a training run, which 'hookscope run' wrote, is checked without running anything:
    each finding names the layer and the first step. Of a folder of runs, such as runs/, all are
    checked, and each finding names its run. Only --only, --skip, --dead, --vanishing and --floor
    apply. With --live, the next step of a training that runs now is checked, as 'hookscope run
    --check' does; the training is not changed. Only --only and --skip apply.

    In a file of weights, every tensor is checked: NaN, infinities, zero or constant channels,
    numbers that float16 cannot hold, adapters and batch normalizations that were not trained.
    --only, --skip and --trust apply to it.
    """
    console: Console = ctx.obj
    job = checked_job(ctx, check, without_output(values))
    file = OUTPUT.resolve(ctx)
    options.note_model_source(ctx)
    verb = "Running" if job.kind == MODELS else "Reading"
    if values["live"]:
        verb = "Waiting for the next step of"
    with job_step(console, job, f"{verb} {values['model']} ...") as progress:
        health: Health = job(**progress)
    console.show(health)
    if file:
        from hookscope.files.atomic_files import write_text
        from hookscope.views.health import REPORT_WRITERS

        console.note(file.written(write_text(file.path, REPORT_WRITERS[file.ending](health))))
    if not health.ok:
        ctx.exit(FAILED)
