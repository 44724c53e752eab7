"""``hookscope filters``: draw the weights of a layer."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values, options, picture_options
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import running

EXAMPLES = (
    Example(
        "hookscope filters sample_models/digits.py:trained conv1",
        "The kernels that a trained model looks at digits with.",
    ),
    Example("hookscope filters resnet18 conv1 --count 64 -o stem.png", "In colour: all of them."),
    Example(
        "hookscope filters sample_models/digits_scripted.pt conv2 --by strength --count 4 --dark",
        "The strongest of a file whose Python is lost, by input channel.",
    ),
    Example(
        "hookscope filters sample_models/digits_exported.pt2 fc -o fc.svg",
        "The matrix of a linear layer.",
    ),
)


@command(
    "filters",
    options.model,
    click.argument(
        "layer",
        metavar="LAYER",
        required=False,
        is_eager=True,
        callback=options.argument_after_model,
        shell_complete=completion_values.layers,
        help="The layer, or one of its parameters.",
    ),
    picture_options.channels("Channels"),
    picture_options.appearance,
    options.weights,
    options.seed,
    picture_options.output,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def filters(ctx: click.Context, output: str | None, force: bool, dpi: int, **values: Any) -> None:
    """Draw the weights of a layer.

    Of a convolution the kernels, in colour where they take three input channels; of a linear layer
    or an embedding the matrix.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    stem = build_request("filters", values).model.stem
    path, replaces = picture_options.resolve_picture_path(output, force, stem, "filters")
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Reading {values['model']} ..."):
        from hookscope.api.filters import filters as api_filters

        drawing = api_filters(**values)
    picture_options.write_picture(console, drawing, path, replaces, dpi, "filters")
