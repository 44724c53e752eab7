"""``hookscope step``: one step of an optimizer, and its update of every parameter."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, intervention_options, loss_options, options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import run_recording
from hookscope.cli.table_options import table_options
from hookscope.specs.choices import OPTIMIZERS

EXAMPLES = (
    Example(
        "hookscope step sample_models/digits.py:trained --target 3 --optimizer adam --lr 0.001",
        "How far Adam's first step moves each parameter of a trained model.",
    ),
    Example(
        "hookscope step sample_models/two_steps.py:TwoSteps --loss sum --lr 0.1"
        " --opt-arg weight_decay=0.5",
        "Plain gradient descent with weight decay, small enough to check by hand.",
    ),
    Example(
        "hookscope step sample_models/digits_exported.pt2 --optimizer rmsprop --layer fc",
        "Of a file; every parameter is stepped, those of one layer are shown.",
    ),
)

optimizer = combine(
    option(
        "--optimizer",
        section="Optimizer",
        default="sgd",
        type=click.Choice(list(OPTIMIZERS)),
        metavar="NAME",
        help=f"Whose step it is: {', '.join(OPTIMIZERS)}.",
    ),
    option(
        "--lr",
        section="Optimizer",
        type=float,
        metavar="X",
        help="The learning rate; the optimizer's own if not given.",
    ),
    option(
        "--opt-arg",
        "opt_args",
        section="Optimizer",
        multiple=True,
        metavar="KEY=VALUE",
        callback=options.read_assignments,
        help="A further argument of the optimizer, such as momentum=0.9. Repeatable.",
    ),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    return loss_options.help_notes() | intervention_options.help_notes("--edit", "--grad-edit")


@command(
    "step",
    options.model,
    optimizer,
    loss_options.loss,
    options.layers,
    input_options.inputs,
    intervention_options.for_command("step"),
    options.run,
    options.limits,
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def step(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Make one step of an optimizer and record what it changes.

    Runs the model forward, the loss backward, and torch's own optimizer, from a fresh state. Writes
    the gradient and the update (value after minus value before) of each parameter of the chosen
    layers to a safetensors file, and prints their norms and the update's over the weight's.
    """
    run_recording(ctx, output, force, values)
