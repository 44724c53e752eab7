"""``hookscope check``: diagnose a model."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, loss_options, options
from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import CommaList, FileName
from hookscope.cli.run_context import running
from hookscope.specs.health_checks import CHECKS, DEFAULT_THRESHOLDS

FOUND = 1

EXAMPLES = (
    Example("hookscope check resnet18", "Untrained weights, on noise."),
    Example(
        "hookscope check sample_models/digits.py:trained --skip saturated",
        "A trained model, without one of the checks.",
    ),
    Example(
        "hookscope check sample_models/digits_scripted.pt --only nan,inf -o digits.sarif",
        "Two checks of a scripted file, with a report for code scanning.",
    ),
)


def _threshold(name: str, text: str) -> Any:
    return option(
        f"--{name}",
        section="Thresholds",
        default=getattr(DEFAULT_THRESHOLDS, name),
        type=float,
        metavar="X",
        help=text,
    )


def _names(name: str, text: str) -> Any:
    return option(f"--{name}", section="Checks", type=CommaList(*CHECKS), metavar="LIST", help=text)


thresholds = combine(
    _threshold("dead", "Share of zero units at which a ReLU-like layer is dead."),
    _threshold("saturated", "Share of entries at a bound at which an activation is saturated."),
    _threshold(
        "margin", "Distance from a bound, relative to the range, that counts as at the bound."
    ),
    _threshold(
        "vanishing",
        "Gradient norm, relative to that nearest to the loss, below which it has vanished"
        " (parameters: 1/100 of it).",
    ),
    _threshold("exploding", "The same, above which it has exploded (parameters: 100 times it)."),
    _threshold("floor", "Gradient norm below which it has always vanished."),
    _threshold("ceiling", "Gradient entry above which it has always exploded."),
)


@command(
    "check",
    options.model,
    _names("only", "Run these checks only; separate names with commas."),
    _names("skip", "Skip these checks."),
    thresholds,
    flag("forward-only", section="Loss", help="Skip the backward pass."),
    loss_options.loss_of_any_model,
    input_options.inputs,
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
    main="only skip forward-only loss target input output",
    topics="checks model-specs inputs weights losses",
)
def check(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Diagnose a model: NaN, dead units, vanishing gradients, ...

    Runs the model forward and a loss backward once, and checks activations, gradients and
    parameters without storing them. Each finding names the layer, the measured value and the
    threshold. The default loss is the output along a random direction. Exit status: 0 if there is
    no error and no warning, 1 otherwise.
    """
    console: Console = ctx.obj
    from pathlib import Path

    from hookscope.cli.request_builder import build_request
    from hookscope.specs import output_path as outputs

    build_request("check", values)
    replaces = outputs.check_report_output(Path(output), force) if output else False
    options.note_model_source(ctx)
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.check import check as api_check

        health = api_check(**values)
    console.show(health)
    if output:
        from hookscope.cli.recording_command import note_written_file
        from hookscope.files.atomic_files import write_text
        from hookscope.views.text.check import REPORT_WRITERS

        path = Path(output)
        size = write_text(path, REPORT_WRITERS[path.suffix.lower()](health))
        note_written_file(console, path, size, replaces)
    if not health.ok:
        ctx.exit(FOUND)
