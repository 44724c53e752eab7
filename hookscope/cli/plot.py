"""``hookscope plot``: draw what a file holds, without loading torch."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import pictures
from hookscope.cli.command import Example, command, option
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.specs.choices import PICTURES

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
    pictures.tensors,
    option(
        "--kind",
        section="Picture",
        type=click.Choice(PICTURES),
        help="Feature maps, distributions, values and gradients from layer to layer, channel by"
        " position, or attention; what fits the keys if not given.",
    ),
    pictures.channels("Channels"),
    pictures.where("Channels"),
    pictures.looks,
    pictures.output,
    everywhere,
    click.pass_context,
    examples=EXAMPLES,
)
def plot(ctx: click.Context, output: str | None, force: bool, dpi: int, **values: Any) -> None:
    """Draw what a file holds.

    Without a KEY that is how values or gradients go through the model, layer by layer. For a layer
    it is its feature maps, its tokens or its attention, and for several layers how their values are
    distributed, unless --kind says otherwise. Torch is not loaded.
    """
    out: Out = ctx.obj
    from pathlib import Path

    path, replaces = pictures.settle_picture(output, force, Path(values["file"]).stem, "plot")
    out.last_words = "Interrupted; nothing was written."
    with out.status("Drawing ..."):
        from hookscope.api.plot import plot as verb
        from hookscope.cli.log import listen

        listen(out)
        drawing = verb(**values)
    pictures.deliver(out, drawing, path, replaces, dpi, "plot")
