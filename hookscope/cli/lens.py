"""``hookscope lens``: what each layer of a language model would predict."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli.analysis_output import model_output, resolve_model_file, show_analysis
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.recording_command import writes_file
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.command_options import LensOptions

EXAMPLES = (
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of Peru is"',
        "The layer at which a small language model knows the next word.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of" -o lens.png',
        "The same as a picture.",
    ),
    Example(
        'hookscope lens hf:sample_models/capitals -i "text:the capital of France is"'
        ' --target " Paris" --layer model.layers.1 --layer model.layers.3',
        "Two layers, with the rank of one token.",
    ),
)


@command(
    "lens",
    options.text_model,
    options_of(LensOptions, "target", "norm", "head"),
    options.layers_by_default("the blocks of the model"),
    input_options.inputs,
    input_options.texts,
    options.run,
    model_output("lens"),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer target input model-arg output no-output",
    topics="model-specs layers inputs weights",
)
def lens(
    ctx: click.Context,
    output: str | None,
    no_output: bool,
    force: bool,
    dpi: int,
    **values: Any,
) -> None:
    """Show what each layer of a language model would predict.

    This is the logit lens: it applies the model's final norm and its unembedding to the output of
    every block, or of the layers that --layer selects, at every position, and shows the most
    probable next token. The last position is shown in figures: the rank and probability of a
    target, and the divergence from the prediction of the whole model.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    request = build_request("lens", values)
    file = None
    if writes_file(ctx):
        file = resolve_model_file("lens", output, force, request.model)
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.lens import lens as api_lens
        from hookscope.views.display import write_analysis

        result = api_lens(**values)
        size = 0 if file is None else write_analysis(result, file.path, dpi)
    show_analysis(console, result, file, size)
