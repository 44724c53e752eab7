"""``hookscope plot``: plot the contents of a file, without torch."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options, picture_options
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.specs.plot_options import PlotOptions

EXAMPLES = (
    Example(
        "hookscope plot sample_models/five.safetensors",
        "Mean and spread of the values of each layer.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors conv1",
        "The feature maps of one layer.",
    ),
    Example(
        "hookscope plot sample_models/digits.safetensors fc.weight",
        "The matrix of a linear layer in a file of weights.",
    ),
    Example("hookscope plot sample_models/run loss", "The loss of a training run."),
    Example(
        'hookscope plot sample_models/five.safetensors "conv*" --kind hist -o hist.pdf',
        "Histograms of several layers.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors relu2 --by strength --count 9"
        " --scale each --dark -o relu2.svg",
        "The nine strongest maps, each with its own scale, on a dark background.",
    ),
)


@command(
    "plot",
    picture_options.tensors,
    options_of(PlotOptions, "kind", "channels", "by", "count", "seed", "dim"),
    picture_options.appearance,
    options.trust_weights,
    picture_options.output,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="kind channels by count scale output",
    topics="keys",
)
def plot(ctx: click.Context, output: str | None, force: bool, dpi: int, **values: Any) -> None:
    """Plot the contents of a result file or weights.

    Without a KEY, plots statistics of values or gradients layer by layer. With one layer, plots its
    feature maps, tokens or attention; with several, their histograms. --kind selects another plot.
    Torch is not loaded.

    For a training run, or a folder of runs such as runs/, plots loss, gradient norm and learning
    rate over the steps, or the curves of each KEY; only --dark applies.

    For weights, plots one tensor as kernels, a matrix or a curve, several as histograms, and
    without a KEY mean and spread of all; --kind is then hist or flow.
    """
    console: Console = ctx.obj
    from hookscope.cli.run_context import reading, show_logs
    from hookscope.stores.weights.open_weights import default_stem

    stem = default_stem(values["file"])
    path, replaces = picture_options.resolve_picture_path(output, force, stem, "plot")
    console.interrupt_message = "Interrupted; nothing was written."
    drawing_step = reading(console, "Drawing ...", values["trust"])
    with drawing_step, console.bar("Reading") as advance:
        from hookscope.api.plot import plot as api_plot

        show_logs(console)
        drawing = api_plot(**values, progress=advance)
    picture_options.write_picture(console, drawing, path, replaces, dpi, "plot")
