"""Diagnose a model, a training run or a file of weights."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import click
from click.core import ParameterSource

from hookscope.cli import options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.run_context import reading, running
from hookscope.commands.public import PLAIN_RUN, Given, Only, public
from hookscope.errors import FAILED
from hookscope.files.output_path import runs_in
from hookscope.files.progress import NamedProgress
from hookscope.specs.checks import RUN_OPTIONS, WEIGHT_OPTIONS, check_run_options
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
from hookscope.specs.run_options import RunOptions
from hookscope.specs.weight_options import check_model_options

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
    are compared with the thresholds of ``hookscope.specs.checks.RunThresholds``. Of the
    keywords, only ``only``, ``skip``, ``dead``, ``vanishing`` and ``floor`` apply to it.

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
    from hookscope.commands.weight_source import as_weights, label_of_weights
    from hookscope.file_analysis.run_findings.run_health import check_run, check_runs
    from hookscope.file_analysis.weight_findings import check_weights
    from hookscope.files.output_path import is_run_folder

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
    checks_of_model, request = _model_request(options, loss, input, loading, run, model)
    from hookscope.model_analysis.health.model_health import check_model

    return check_model(request, checks_of_model)


def _model_request(
    options: Given[CheckOptions],
    loss: LossRequest,
    input: InputRequest,
    loading: Given[ModelRequest],
    run: RunOptions,
    model: Any,
) -> tuple[CheckOptions, Request]:
    """Return what is asked of a model, checked."""
    checks, model_request = options.make(), loading.make(model=model)
    if model_request.source == ONNX and loss.is_default:  # it has no gradients
        loss = replace(loss, forward_only=True)
    return checks, Request("check", model_request, input=input, run=run, loss=loss)


MODEL, RUN, WEIGHTS = "model", "run", "weights"  # what is checked

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


@command(
    "check",
    options.model,
    options_of(CheckOptions),
    options_of(LossRequest, "forward_only"),
    options.loss_of_any_model,
    options.inputs,
    options.texts,
    options.run,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Also write the findings to a .sarif (SARIF 2.1.0) or .xml (JUnit) file.",
    ),
    options.force,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="only forward-only loss target input model-arg output",
    topics="checks model-specs inputs weights losses",
)
def check_command(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Diagnose a model, a training run or weights: NaN, dead units, ...

    Runs the model forward and a loss backward once, and checks activations, gradients and
    parameters without storing them. Each finding names the layer, the measured value and the
    threshold. The default loss is the output along a random direction (seed 0). Exit status: 0 if
    there is no error and no warning, 1 otherwise.

    The folder of a training run, which 'hookscope run' wrote, is checked without running anything:
    each finding names the layer and the first step. Of a folder of runs, such as runs/, all are
    checked, and each finding names its run. Only --only, --skip, --dead, --vanishing and --floor
    apply.

    In a file of weights, every tensor is checked: NaN, infinities, zero or constant channels,
    numbers that float16 cannot hold, adapters and batch normalizations that were not trained.
    --only, --skip and --trust apply to it.
    """
    console: Console = ctx.obj
    from pathlib import Path

    from hookscope.files import output_path as outputs
    from hookscope.stores.weights.open_weights import is_weights

    model = values["model"]
    if outputs.is_run_folder(model) or outputs.runs_in(model):
        values, kind = _run_values(ctx, values), RUN
    elif is_weights(model):
        values, kind = _weight_values(ctx, values), WEIGHTS
    else:
        _model_request(**check.checked(**values).values)
        kind = MODEL
    replaces = outputs.check_report_output(Path(output), force) if output else False
    options.note_model_source(ctx)
    if kind == WEIGHTS:
        health = _check_weights(console, **values)
    else:
        status = console.status(f"Reading {model} ...")
        with status if kind == RUN else running(console, f"Running {model} ..."):
            health = check(**values)
    console.show(health)
    if output:
        from hookscope.cli.recording_command import note_written_file
        from hookscope.files.atomic_files import write_text
        from hookscope.views.health import REPORT_WRITERS

        path = Path(output)
        size = write_text(path, REPORT_WRITERS[path.suffix.lower()](health))
        note_written_file(console, path, size, replaces)
    if not health.ok:
        ctx.exit(FAILED)


def _run_values(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """The values that apply to a run. Settings for all commands, such as a seed, do not."""
    from hookscope.specs.checks import check_run_options

    typed = ParameterSource.COMMANDLINE
    names = [name for name in values if name != "model"]
    check_run_options(values["model"], [x for x in names if ctx.get_parameter_source(x) is typed])
    options = {name: values[name] for name in RUN_OPTIONS}
    RunCheckOptions(**options)  # for its checks, before anything is read
    return {"model": values["model"], **options}


def _weight_values(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """The values that apply to weights."""
    from hookscope.specs.weight_options import check_model_options

    typed = ParameterSource.COMMANDLINE
    names = [name for name in values if name != "model"]
    chosen = [x for x in names if ctx.get_parameter_source(x) is typed]
    check_model_options(chosen, WEIGHT_OPTIONS, values["model"])
    options = {name: values[name] for name in WEIGHT_OPTIONS}
    WeightCheckOptions(options["only"], options["skip"])
    return {"model": values["model"], **options}


def _check_weights(console: Console, model: str, **chosen: Any) -> Health:
    step = f"Reading {model} ..."
    with reading(console, step, chosen["trust"]), console.bar("Reading") as advance:
        health: Health = check(model, **chosen, progress=advance)
        return health
