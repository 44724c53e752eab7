"""``hookscope capture``: run a model once and record the outputs of its layers."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, intervention_options, options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import run_recording
from hookscope.cli.table_options import table_options
from hookscope.errors import RequestError
from hookscope.specs.output_path import names_folder

EXAMPLES = (
    Example(
        'hookscope capture --layer "layer3.*" --input img.png',
        "The outputs of one stage of resnet18 for a photo.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --layer "conv*"'
        " --input sample_models/five.png",
        "A trained model from a Python file.",
    ),
    Example(
        'hookscope capture sample_models/digits_scripted.pt --layer "conv*"',
        "The same from a scripted file, which needs no Python; .pt2 files work as well.",
    ),
    Example(
        'hookscope capture resnet18 --layer "*.conv?" --what output,input --shape 2x3x64x64',
        "What went in and came out, on noise.",
    ),
    Example(
        'hookscope capture resnet18 --layer "layer1.*" --ops --shape 1x3x64x64',
        "What is computed between modules, such as the sums of residual connections.",
    ),
    Example(
        'hookscope capture vit_b_16 --layer "*.self_attention" --attention',
        "The weights of attention, head by head.",
    ),
    Example(
        'hookscope capture sample_models/letters.py:Letters --input "text:hello" --generate 3',
        "A language model that adds three tokens; each step is a call of its own.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --edit "conv1[3,7]=zero" --compare',
        "The same digit with two channels knocked out, and how far every later layer moves.",
    ),
    Example(
        'hookscope capture sample_models/digits.py:trained --hook "conv*=sample_models/'
        'own_hook.py:mute" --hook-arg channel=3 --layer "relu*"',
        "With a function of your own run after the convolutions.",
    ),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    return intervention_options.help_notes("--edit")


@command(
    "capture",
    options.model,
    options.layers,
    options.what("output", "output", "input"),
    options.ops,
    options.attention,
    input_options.inputs,
    intervention_options.for_command("capture"),
    options.run,
    options.device_map,
    option(
        "--generate",
        section="Run",
        type=click.IntRange(min=1),
        metavar="N",
        help="Let a language model add N tokens, the likeliest each; every step is a call.",
    ),
    options.checks,
    options.output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def capture(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Run a model and record the tensors at its layers.

    Writes a safetensors file and prints a table of what is in it: shape, dtype and statistics, in
    the order of execution. What is kept is what a layer returned at that moment, whatever is done
    to it in place later. For a whole dataset use 'hookscope extract'.
    """
    if output is not None and names_folder(output):
        raise RequestError(
            f"{output} is a folder, and capture writes one file.",
            "Name a file, or use 'hookscope extract' for the features of many inputs.",
        )
    run_recording(ctx, output, force, values)
