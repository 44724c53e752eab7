"""``hookscope check``: what is wrong with a model."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import losses, options
from hookscope.cli.command import Example, command, flag, option, together
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.cli.running import running
from hookscope.cli.values import FileName, Several
from hookscope.specs.health_checks import CHECKS, DEFAULTS

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
        default=getattr(DEFAULTS, name),
        type=float,
        metavar="X",
        help=text,
    )


def _names(name: str, text: str) -> Any:
    return option(
        f"--{name}", section="Which checks", type=Several(*CHECKS), metavar="LIST", help=text
    )


thresholds = together(
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
    return {"Checks": [(one.name, one.finds) for one in CHECKS.values()]} | losses.formulas()


@command(
    "check",
    options.model,
    _names("only", "Make these checks alone; names of those below, with commas between."),
    _names("skip", "Leave these checks out."),
    thresholds,
    flag("forward-only", section="Loss", help="Run no backward pass."),
    losses.loss_of_any_model,
    options.inputs,
    options.run,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Write the findings to a file too: .sarif (SARIF 2.1.0) or .xml (JUnit).",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
    everywhere,
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
    out: Out = ctx.obj
    from pathlib import Path

    from hookscope.cli.request import part_of
    from hookscope.specs import catalog
    from hookscope.specs import output_path as outputs
    from hookscope.specs.command_options import CheckOptions

    catalog.check(values["model"])
    part_of(CheckOptions, values)
    replaces = outputs.check_report(Path(output), force) if output else False
    options.announce_model(ctx)
    with running(out, f"Running {values['model']} ..."):
        from hookscope.api.check import check as verb

        health = verb(**values)
    if out.json:
        from hookscope.views.text.json import document

        out.document(document("check", health.to_json()))
    else:
        from hookscope.views.text.check import check_lines

        out.result(check_lines(health, out.width, out.ascii))
    if output:
        from hookscope.cli.recording import say_what_was_written
        from hookscope.files.atomic import write_text
        from hookscope.views.text.findings import WRITERS

        path = Path(output)
        size = write_text(path, WRITERS[path.suffix.lower()](health))
        say_what_was_written(out, path, size, replaces)
    if not health.ok:
        ctx.exit(FOUND)
