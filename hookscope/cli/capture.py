"""``hookscope capture``: run a model once and record the outputs of its layers."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli import options as intervention_options
from hookscope.cli.commands import Example, command
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import run_recording
from hookscope.cli.table_options import table_options
from hookscope.errors import RequestError
from hookscope.files.output_path import names_folder
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.run_options import RunOptions

EXAMPLES = (
    Example(
        'hookscope capture --layer "layer3.*" --input img.png',
        "The outputs of one stage of resnet18 for an image.",
    ),
    Example(
        "hookscope capture sample_models/digits.py:trained --input sample_models/five.png",
        "All layers of a trained model from a Python file.",
    ),
    Example(
        "hookscope capture resnet18 --type Conv2d --shape 2x3x64x64 --no-output",
        "A table of statistics for noise, without a file.",
    ),
    Example(
        'hookscope capture sample_models/digits_scripted.pt --layer "conv*"',
        "A scripted file, which needs no Python code; .pt2 files work as well.",
    ),
    Example(
        'hookscope capture resnet18 --layer "*.conv?" --what output,input --shape 2x3x64x64',
        "Inputs and outputs.",
    ),
    Example(
        'hookscope capture resnet18 --layer "layer1.*" --ops --shape 1x3x64x64',
        "Results computed between modules, such as the sums of residual connections.",
    ),
    Example(
        'hookscope capture vit_b_16 --layer "*.self_attention" --attention',
        "Attention weights of each head.",
    ),
    Example(
        'hookscope capture sample_models/letters.py:Letters --input "text:hello" --generate 3',
        "Generate three tokens with a language model; each step is a separate call.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --edit "conv1[3,7]=zero" --compare',
        "Set two channels to zero, and show how much every later layer changes.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --hook "conv*=sample_models/'
        'own_hook.py:mute" --hook-arg channel=3 --layer "relu*"',
        "Run a custom hook after the convolutions.",
    ),
)


@command(
    "capture",
    options.model,
    options.layers,
    options_of(CaptureOptions, "what", "ops", "attention"),
    input_options.inputs,
    input_options.texts,
    intervention_options.for_command("capture"),
    options.run,
    options.device_map,
    options_of(RunOptions, "generate"),
    options_of(CaptureOptions, "stop", "verify", "strict", "max_bytes"),
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer what input model-arg shape weights edit output",
    topics="model-specs layers inputs weights edits hooks keys",
)
def capture(
    ctx: click.Context, output: str | None, no_output: bool, force: bool, **values: Any
) -> None:
    """Run a model and record the outputs of its layers.

    Writes a safetensors file and prints a table of its tensors in execution order: shape, dtype and
    statistics. Values are copied when a layer returns, so later in-place operations do not change
    them. For a whole dataset use 'hookscope extract'.
    """
    if output is not None and names_folder(output):
        raise RequestError(
            f"{output} is a folder; capture writes a single file.",
            "Name a file, or use 'hookscope extract' for the features of many inputs.",
        )
    run_recording(ctx, output, force, values)
