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
    Example("hookscope check resnet18", "A network as built, on noise."),
    Example(
        "hookscope check sample_models/digits.py:trained --input sample_models/five.png"
        " --skip saturated",
        "A trained one on an image, but for one check.",
    ),
    Example(
        "hookscope check sample_models/digits_scripted.pt --forward-only --only nan,inf"
        " -o digits.sarif",
        "Two checks of a file, for code scanning.",
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
    return option(
        f"--{name}", section="Which checks", type=CommaList(*CHECKS), metavar="LIST", help=text
    )


thresholds = combine(
    _threshold("dead", "Share of zero units from which a ReLU-like layer counts as dead."),
    _threshold("saturated", "Share of entries at a bound from which an activation is saturated."),
    _threshold("margin", "How near a bound is at it, as a share of the width between the bounds."),
    _threshold(
        "vanishing",
        "Norm of a gradient over the one nearest to the loss under which it has vanished;"
        " for parameters 1/100 of it.",
    ),
    _threshold("exploding", "The same upwards; for parameters 100 times it."),
    _threshold("floor", "Norm of a gradient under which it has vanished in any case."),
    _threshold("ceiling", "Entry of a gradient over which it has exploded in any case."),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    return {
        "Checks": [(check_info.name, check_info.finds) for check_info in CHECKS.values()]
    } | loss_options.help_notes()


@command(
    "check",
    options.model,
    _names("only", "Make these checks alone; names of those below, with commas between."),
    _names("skip", "Leave these checks out."),
    thresholds,
    flag("forward-only", section="Loss", help="Run no backward pass."),
    loss_options.loss_of_any_model,
    input_options.inputs,
    options.run,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Write the findings to a file too: .sarif (SARIF 2.1.0) or .xml (JUnit).",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def check(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Say what is wrong with a model.

    Runs it forward and a loss backward once, and judges activations, gradients and parameters as
    they pass; nothing is kept. Each finding names the layer, what was measured, and the threshold.
    The loss is the output along a random direction unless --loss or --target says otherwise. Exit
    status: 0 no error and no warning, 1 some.
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
