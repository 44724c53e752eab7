"""``hookscope sweep``: apply one edit at each layer, position, head or expert in turn."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli import options as loss_options
from hookscope.cli.analysis_output import model_output, resolve_model_file, show_analysis
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import check_not_an_input, writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.command_options import SweepOptions

EXAMPLES = (
    Example(
        "hookscope sweep sample_models/digits.py:trained --edit zero",
        "How much each layer changes the output if it gives zeros.",
    ),
    Example(
        "hookscope sweep sample_models/digits.py:trained --edit noise:1std --metric kl",
        "The same for noise, ranked by the divergence of the prediction.",
    ),
    Example(
        'hookscope sweep hf:sample_models/capitals -i "text:the capital of Italy is" --edit'
        ' zero --layer "model.layers.?" --positions all --target " Rome" --against " Paris"',
        "Which layers and positions an answer depends on.",
    ),
    Example(
        'hookscope sweep hf:sample_models/capitals -i "text:the capital of Italy is" --edit'
        ' zero --layer "*.o_proj" --heads auto -o heads.html',
        "The attention heads of a model, as a page.",
    ),
    Example(
        "hookscope sweep sample_models/digits.py:trained -i sample_models/five.png --edit"
        " quantize-weights:3 --metric kl",
        "How much each layer depends on the precision of its weights.",
    ),
)

MEANINGS = {
    "Edits (--edit)": [
        ("patch:FILE", "the tensor of the same layer in a capture"),
        ("zero, mean, noise:1std, scale:A, add:FILE#KEY, ...", "as in --edit LAYER=OPERATION"),
        (
            "quantize-weights:BITS",
            "weights rounded: each output channel to a symmetric grid of its own",
        ),
        ("quantize:BITS", "output rounded: one grid for the tensor"),
        ("dtype:bfloat16", "output rounded to bfloat16 and back"),
    ],
    "Metrics (--metric)": [
        ("difference", "change of the logit of --target minus that of --against"),
        ("score", "change of the target's logit"),
        ("loss", "change of the loss"),
        ("kl", "divergence from the prediction without the edit, in nats"),
        ("output", "norm of the change of the output, divided by the norm of the output"),
    ],
}


@command(
    "sweep",
    options.model,
    options_of(SweepOptions),
    loss_options.loss,
    options.layers_by_default("leaves; with --positions the blocks of the model"),
    input_options.inputs,
    options.run,
    model_output("sweep", "file"),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer edit positions target against input model-arg output no-output",
    notes=MEANINGS,
    topics="model-specs layers edits inputs weights losses",
)
def sweep(
    ctx: click.Context, file: str | None, no_output: bool, force: bool, dpi: int, **values: Any
) -> None:
    """Apply one edit at each layer, position, head or expert in turn.

    Runs the model once for each selected layer with the edit, or once for each position, attention
    head or expert of each layer, and shows the change of the prediction as a map. For a language
    model, it is the prediction after the last token. A JSON file is written during the run: after
    an interruption, the same command resumes.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request
    from hookscope.specs.sweep_edit import sweep_files

    request = build_request("sweep", values)
    target, resumable = None, None
    if writes_file(ctx, "file"):
        target = resolve_model_file("sweep", file, force, request.model)
        if target.replaces:
            check_not_an_input(target.path, [*sweep_files(values["edit"]), values["weights"]])
        resumable = target.path if target.path.suffix.lower() == ".json" else None
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.sweep import sweep as api_sweep
        from hookscope.views.display import write_analysis

        with console.bar("sweeping") as advance:

            def progress(done: int, total: int) -> None:
                if done and resumable is not None:
                    console.interrupt_message = (
                        f"Interrupted; {done} of {total} runs are in {resumable}."
                        " Run the same command to resume."
                    )
                advance(done, total)

            result = api_sweep(**values, file=resumable, progress=progress)
        size = 0
        if resumable is not None:  # written during the runs
            size = resumable.stat().st_size
        elif target is not None:
            size = write_analysis(result, target.path, dpi)
        if target is not None:
            console.interrupt_message = f"Interrupted; {target.path} was written."
    if target is not None and result.resumed:
        target = target._replace(replaces=False)
    show_analysis(console, result, target, size)
