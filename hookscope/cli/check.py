"""``hookscope check``: diagnose a model, a training run or a file of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli import options as loss_options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.run_context import reading, running
from hookscope.specs.command_options import CheckOptions, RunCheckOptions, WeightCheckOptions
from hookscope.specs.request import LossRequest
from hookscope.specs.run_checks import RUN_OPTIONS
from hookscope.specs.weight_checks import WEIGHT_OPTIONS

if TYPE_CHECKING:
    from hookscope.results.health import Health

FOUND = 1
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
    loss_options.loss_of_any_model,
    input_options.inputs,
    input_options.texts,
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
def check(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
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

    from hookscope.cli.request_builder import build_request
    from hookscope.files import output_path as outputs
    from hookscope.stores.weights.open_weights import is_weights

    model = values["model"]
    if outputs.is_run_folder(model) or outputs.runs_in(model):
        values, kind = _run_values(ctx, values), RUN
    elif is_weights(model):
        values, kind = _weight_values(ctx, values), WEIGHTS
    else:
        build_request("check", values)
        kind = MODEL
    replaces = outputs.check_report_output(Path(output), force) if output else False
    options.note_model_source(ctx)
    if kind == WEIGHTS:
        health = _check_weights(console, **values)
    else:
        status = console.status(f"Reading {model} ...")
        with status if kind == RUN else running(console, f"Running {model} ..."):
            from hookscope.api.check import check as api_check

            health = api_check(**values)
    console.show(health)
    if output:
        from hookscope.cli.recording_command import note_written_file
        from hookscope.files.atomic_files import write_text
        from hookscope.views.health import REPORT_WRITERS

        path = Path(output)
        size = write_text(path, REPORT_WRITERS[path.suffix.lower()](health))
        note_written_file(console, path, size, replaces)
    if not health.ok:
        ctx.exit(FOUND)


def _run_values(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """The values that apply to a run. Settings for all commands, such as a seed, do not."""
    from hookscope.specs.run_checks import check_run_options

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
    from hookscope.api.check import check as api_check

    step = f"Reading {model} ..."
    with reading(console, step, chosen["trust"]), console.bar("Reading") as advance:
        health: Health = api_check(model, **chosen, progress=advance)
        return health
