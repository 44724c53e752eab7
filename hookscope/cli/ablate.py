"""``hookscope ablate``: ablate layers one at a time and rank them by the effect."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values, input_options, loss_options, options
from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.next_command import edit_command
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file, resolve_output_path
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option, top_option
from hookscope.specs.choices import ABLATION_EDITS, ABLATION_METRICS

EXAMPLES = (
    Example(
        "hookscope ablate sample_models/digits.py:trained --input sample_models/five.png",
        "Which layers a trained model needs to see a five.",
    ),
    Example(
        'hookscope ablate sample_models/digits_scripted.pt --layer "conv*" --channels --by mean',
        "Every channel of two layers, of a scripted file.",
    ),
    Example(
        'hookscope ablate resnet18 --layer "layer?.?" --by noise --rank output --shape 2x3x64x64',
        "Whole blocks, by how far the output moves.",
    ),
)

MEANINGS = {
    "Knocking out (--by)": [
        ("zero", "the output becomes 0"),
        ("mean", "each channel becomes its mean over the batch and all positions"),
        ("noise", "standard normal noise is added, times the output's standard deviation"),
    ],
    "Figures": [
        ("score", "change of the target's logit, mean over the batch: after minus before"),
        ("loss", "change of the loss: after minus before"),
        ("output", "norm of the difference of the outputs, over the norm of the clean one"),
        ("flipped", "for how many images, or positions, the likeliest class changed"),
    ],
}

how = combine(
    option(
        "--by",
        section="Knocking out",
        default="zero",
        type=click.Choice(list(ABLATION_EDITS)),
        help="What becomes of a layer's output.",
    ),
    flag(
        "channels",
        section="Knocking out",
        help="Every channel of every layer on its own, in place of whole layers.",
    ),
    option(
        "--rank",
        section="Knocking out",
        type=click.Choice(ABLATION_METRICS),
        help="The figure to sort by; score if the output is one of class scores, else output.",
    ),
)

output = combine(
    option(
        "--output",
        "-o",
        "file",
        section="Output",
        type=FileName("file"),
        help="The JSON file to write, and to go on from; MODEL.ablate.json here if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)


def _notes() -> dict[str, list[tuple[str, str]]]:
    return MEANINGS | loss_options.help_notes()


@command(
    "ablate",
    options.model,
    how,
    loss_options.loss,
    options.layers,
    input_options.inputs,
    options.run,
    output,
    top_option,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    notes=_notes,
)
def ablate(ctx: click.Context, file: str | None, force: bool, **values: Any) -> None:
    """Knock out layers in turn and rank them by what that does.

    Runs the model once for every chosen layer (all that hold no others, if none is chosen) with its
    output changed, and shows how far the score of the target, the loss and the output move, the
    largest change first. The target is settled by the run with nothing knocked out. Results go to a
    JSON file as they come: interrupted, the same command goes on from there.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("ablate", values)
    path, replaces = resolve_output_path("ablate", file, force, request.model, ".json")
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.ablate import ablate as api_ablate

        with console.bar("knocking out") as advance:

            def progress(done: int, total: int) -> None:
                if done:
                    kept = f"{done} of {total} knock-outs are in {path}"
                    console.interrupt_message = (
                        f"Interrupted; {kept}. The same command goes on from there."
                    )
                advance(done, total)

            result = api_ablate(**values, file=path, progress=progress)
        console.interrupt_message = f"Interrupted; {path} was written."
    names = [(layer.module, layer.type) for layer in result.coverage.executed]
    names += [(layer.module, layer.type) for layer in result.coverage.not_executed]
    completion_values.remember_layers(values["model"], names, complete=False)
    console.show(result, str(path))
    note_written_file(console, path, path.stat().st_size, replaces and not result.resumed)
    if result.knockouts:
        console.note(f"next: {edit_command(ctx, result.knockouts[0].edit(result.edit))}")
