"""``hookscope grads``: run a model forward and backward and keep the gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, intervention_options, loss_options, options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import run_recording
from hookscope.cli.table_options import table_options
from hookscope.specs.choices import PENALTIES

EXAMPLES = (
    Example(
        "hookscope grads --loss kl --target 3",
        "How resnet18 would have to change to see class 3.",
    ),
    Example(
        "hookscope grads resnet18 --input img.png --loss logit --layer fc --what output,param",
        "What the highest score depends on.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --loss sum --what output,input,param",
        "A model small enough to check by hand.",
    ),
    Example(
        'hookscope grads sample_models/digits.py:trained --grad-edit "relu2=clip:0.01"',
        "The gradient clipped at one layer, and what of it reaches those before.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained --target 3 --hook"
        " conv2=sample_models/own_hook.py:clip --hook-kind tensor --hook-arg largest=0.01",
        "The same by a function of your own.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained"
        " --loss sample_models/margin.py:margin --target 5",
        "A loss of one's own.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --penalty gp",
        "The gradient penalty of Wasserstein GANs; the norm is 4 here, the penalty 9.",
    ),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    return loss_options.help_notes() | intervention_options.help_notes("--edit", "--grad-edit")


penalty = option(
    "--penalty",
    section="Loss",
    type=click.Choice(PENALTIES),
    help="Differentiate the gradient penalty in place of the loss: how far the norm of the gradient"
    " at the input is from 1.",
)


@command(
    "grads",
    options.model,
    loss_options.loss,
    penalty,
    options.layers,
    options.what("output,param", "output", "input", "param"),
    options.ops,
    input_options.inputs,
    intervention_options.for_command("grads"),
    options.run,
    options.device_map,
    options.checks,
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def grads(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Run a model backward and record the gradients.

    Writes the gradient of a loss at each layer's output, at each parameter and at the model's
    input to a safetensors file, and prints how the gradient flows. A gradient that does not exist
    is named with its reason and is never a zero.

    With --penalty gp the score is the loss summed over the batch (--loss sum, all outputs, unless
    another is given), and the gradients are those of the mean over the batch of (norm - 1)^2, where
    norm is that of the score's gradient at one sample's input (Gulrajani et al., 2017).
    """
    run_recording(ctx, output, force, values)
