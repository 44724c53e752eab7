"""``hookscope ablate``: ablate layers one at a time and rank them by the effect."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values, options
from hookscope.cli import options as input_options
from hookscope.cli import options as loss_options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.next_command import edit_command
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file, resolve_output_path, writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.command_options import AblateOptions

EXAMPLES = (
    Example(
        "hookscope ablate sample_models/digits.py:trained -i sample_models/five.png",
        "The layers that a trained model needs to recognize a five.",
    ),
    Example(
        'hookscope ablate sample_models/digits_scripted.pt --layer "conv*" --channels --by mean',
        "Every channel of two layers of a scripted file.",
    ),
    Example(
        'hookscope ablate --layer "layer?.?" --by noise --rank output --shape 2x3x64x64',
        "Blocks of resnet18, ranked by the change of the output.",
    ),
)

MEANINGS = {
    "Ablations (--by)": [
        ("zero", "the output becomes 0"),
        ("mean", "each channel becomes its mean over the batch and all positions"),
        ("noise", "standard normal noise is added, scaled by the output's standard deviation"),
    ],
    "Metrics (--rank)": [
        ("score", "change of the target's logit, averaged over the batch"),
        ("loss", "change of the loss"),
        ("output", "norm of the change of the output, divided by the norm of the original output"),
        ("flipped", "number of images or positions whose predicted class changed; not for --rank"),
    ],
}

output = combine(
    option(
        "--output",
        "-o",
        "file",
        section="Output",
        type=FileName("file"),
        help="JSON file to write, and to resume from. Default: MODEL.ablate.json.",
    ),
    options.no_output,
    options.force,
)


@command(
    "ablate",
    options.model,
    options_of(AblateOptions),
    loss_options.loss,
    options.layers,
    input_options.inputs,
    input_options.texts,
    options.run,
    output,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer channels by target input model-arg output no-output",
    notes=MEANINGS,
    topics="model-specs layers inputs weights losses",
)
def ablate(
    ctx: click.Context, file: str | None, no_output: bool, force: bool, **values: Any
) -> None:
    """Ablate layers one at a time and rank them by the effect.

    Runs the model once for each selected layer (default: all leaf layers) with its output changed,
    and shows the change of the target's score, the loss and the output, the largest first. The
    target is determined by the run without an ablation. Results are written to a JSON file during
    the run: after an interruption, the same command resumes.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("ablate", values)
    path, replaces = None, False
    if writes_file(ctx, "file"):
        path, replaces = resolve_output_path("ablate", file, force, request.model, ".json")
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.ablate import ablate as api_ablate

        with console.bar("ablating") as advance:

            def progress(done: int, total: int) -> None:
                if done and path is not None:
                    console.interrupt_message = (
                        f"Interrupted; {done} of {total} ablations are in {path}."
                        " Run the same command to resume."
                    )
                advance(done, total)

            result = api_ablate(**values, file=path, progress=progress)
        if path is not None:
            console.interrupt_message = f"Interrupted; {path} was written."
    names = [(layer.module, layer.type) for layer in result.coverage.executed]
    names += [(layer.module, layer.type) for layer in result.coverage.not_executed]
    completion_values.remember_layers(values["model"], names, complete=False)
    console.show(result, None if path is None else str(path))
    if path is not None:
        note_written_file(console, path, path.stat().st_size, replaces and not result.resumed)
    if result.ablations:
        console.note(f"next: {edit_command(ctx, result.ablations[0].edit(result.edit))}")
