"""``hookscope plot``: plot the contents of a file, without torch."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import picture_options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.specs.choices import PLOT_KINDS

EXAMPLES = (
    Example(
        "hookscope plot sample_models/five.safetensors",
        "The mean and spread of each layer's values, from the first to the last.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors conv1",
        "The feature maps of one layer.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors relu2 --by strength --count 9"
        " --scale each --dark -o relu2.svg",
        "The nine strongest, each with its own scale, on dark paper.",
    ),
    Example(
        'hookscope plot sample_models/five.safetensors "conv*" --kind hist -o hist.pdf',
        "How the values of several layers are distributed.",
    ),
)


@command(
    "plot",
    picture_options.tensors,
    option(
        "--kind",
        section="Picture",
        type=click.Choice(PLOT_KINDS),
        help="Feature maps, distributions, values and gradients from layer to layer, channel by"
        " position, or attention; what fits the keys if not given.",
    ),
    picture_options.channels("Channels"),
    picture_options.channel_details("Channels"),
    picture_options.appearance,
    picture_options.output,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def plot(ctx: click.Context, output: str | None, force: bool, dpi: int, **values: Any) -> None:
    """Draw what a file holds.

    Without a KEY that is how values or gradients go through the model, layer by layer. For a layer
    it is its feature maps, its tokens or its attention, and for several layers how their values are
    distributed, unless --kind says otherwise. Torch is not loaded.
    """
    console: Console = ctx.obj
    from pathlib import Path

    path, replaces = picture_options.resolve_picture_path(
        output, force, Path(values["file"]).stem, "plot"
    )
    console.interrupt_message = "Interrupted; nothing was written."
    with console.status("Drawing ..."):
        from hookscope.api.plot import plot as api_plot
        from hookscope.cli.run_context import show_logs

        show_logs(console)
        drawing = api_plot(**values)
    picture_options.write_picture(console, drawing, path, replaces, dpi, "plot")
