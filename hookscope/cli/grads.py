"""``hookscope grads``: run a model forward and backward and record the gradients."""

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
from hookscope.specs.command_options import GradsOptions
from hookscope.specs.request import LossRequest

EXAMPLES = (
    Example(
        "hookscope grads --loss kl --target 3",
        "Gradients of the KL divergence of resnet18's prediction from class 3.",
    ),
    Example(
        "hookscope grads --input img.png --loss logit --layer fc --what output,param",
        "Gradients of the highest class score.",
    ),
    Example(
        'hookscope grads sample_models/digits.py:trained --grad-edit "relu2=clip:0.01"',
        "Clip the gradient at one layer; earlier layers receive the clipped one.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --loss sum --what output,input,param",
        "A model small enough to check by hand.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained --target 3 --hook"
        " conv2=sample_models/own_hook.py:clip --hook-kind tensor --hook-arg largest=0.01",
        "Clip gradients with a custom hook.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained"
        " --loss sample_models/margin.py:margin --target 5",
        "A custom loss.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --penalty gp",
        "The gradient penalty of Wasserstein GANs: here the norm is 4 and the penalty 9.",
    ),
)


@command(
    "grads",
    options.model,
    loss_options.loss,
    options_of(LossRequest, "penalty"),
    options.layers,
    options_of(GradsOptions, "what", "ops"),
    input_options.inputs,
    input_options.texts,
    intervention_options.for_command("grads"),
    options.run,
    options.device_map,
    options_of(GradsOptions, "verify", "strict", "max_bytes"),
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="loss target layer input model-arg grad-edit output no-output",
    topics="model-specs layers inputs weights losses edits hooks keys",
)
def grads(
    ctx: click.Context, output: str | None, no_output: bool, force: bool, **values: Any
) -> None:
    """Run a model backward and record the gradients.

    Writes the gradients of a loss at layer outputs, parameters and the model's input to a
    safetensors file, and prints a table of them. A gradient that does not exist is listed with the
    reason, not as zero.

    With --penalty gp the loss is summed over the batch (default: --loss sum over all outputs), and
    the gradients are those of the batch mean of (norm - 1)^2, where norm is the norm of that sum's
    gradient at one sample's input (Gulrajani et al., 2017).
    """
    run_recording(ctx, output, force, values)
