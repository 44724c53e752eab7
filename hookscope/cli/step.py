"""``hookscope step``: one optimizer step, and its update of every parameter."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli import options as intervention_options
from hookscope.cli import options as loss_options
from hookscope.cli.commands import Example, command
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import run_recording
from hookscope.cli.table_options import table_options
from hookscope.specs.command_options import StepOptions

EXAMPLES = (
    Example(
        "hookscope step sample_models/digits.py:trained --optimizer adam --lr 0.001",
        "Adam's first update of each parameter of a trained model.",
    ),
    Example(
        "hookscope step sample_models/digits_exported.pt2 --optimizer rmsprop -l fc",
        "An exported file; all parameters are updated, those of one layer are recorded.",
    ),
    Example(
        "hookscope step sample_models/two_steps.py:TwoSteps --loss sum --lr 0.1"
        " --opt-arg weight_decay=0.5",
        "Gradient descent with weight decay, small enough to check by hand.",
    ),
)


@command(
    "step",
    options.model,
    options_of(StepOptions, "optimizer", "lr", "opt_args"),
    loss_options.loss,
    options.layers,
    input_options.inputs,
    input_options.texts,
    intervention_options.for_command("step"),
    options.run,
    options_of(StepOptions, "strict", "max_bytes"),
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="optimizer lr opt-arg loss target input model-arg output no-output",
    topics="model-specs layers inputs weights losses edits hooks keys",
)
def step(
    ctx: click.Context, output: str | None, no_output: bool, force: bool, **values: Any
) -> None:
    """Run one optimizer step and record the parameter updates.

    Runs the model forward, the loss backward and one step of a new torch optimizer. Writes the
    gradient and the update (new minus old value) of each parameter of the selected layers to a
    safetensors file, and prints their norms and the ratio of update to weight.
    """
    run_recording(ctx, output, force, values)
