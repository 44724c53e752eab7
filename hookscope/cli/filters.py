"""``hookscope filters``: plot the weights of a layer."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values, options, picture_options
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import reading, running
from hookscope.errors import RequestError
from hookscope.files.shell_words import cite_command, quote_word
from hookscope.specs.plot_options import PlotOptions

EXAMPLES = (
    Example(
        "hookscope filters sample_models/digits.py:trained conv1",
        "The convolution kernels of a trained model.",
    ),
    Example(
        "hookscope filters resnet18 conv1 --count 64 -o stem.png", "All 64 kernels, in colour."
    ),
    Example(
        "hookscope filters sample_models/digits_scripted.pt conv2 --by strength --count 4 --dark",
        "The strongest kernels of a scripted file, by input channel.",
    ),
    Example("hookscope filters sample_models/digits.safetensors", "Kernels in a file of weights."),
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
        help="Layer, or one of its parameters.",
    ),
    options_of(PlotOptions, "channels", "by", "count", "scale", "dark"),
    options.weights,
    options.seed,
    picture_options.output,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="channels by count weights output model-arg",
    topics="model-specs weights",
)
def filters(ctx: click.Context, output: str | None, force: bool, dpi: int, **values: Any) -> None:
    """Plot the weights of a layer.

    For a convolution these are its kernels, in colour if it has three input channels; for a linear
    layer or an embedding it is the matrix. MODEL may be a file of weights, which is read without
    torch; without LAYER, its first convolution is drawn.
    """
    console: Console = ctx.obj
    if _names_weights(ctx, values):
        _draw_weights(console, output, force, dpi, values)
        return
    if ctx.get_parameter_source("model") is not ParameterSource.COMMANDLINE:
        _check_layer(values["layer"])
    from hookscope.cli.request_builder import build_request

    stem = build_request("filters", values).model.stem
    path, replaces = picture_options.resolve_picture_path(output, force, stem, "filters")
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Reading {values['model']} ..."):
        from hookscope.api.filters import filters as api_filters

        drawing = api_filters(**values)
    picture_options.write_picture(console, drawing, path, replaces, dpi, "filters")


def _names_weights(ctx: click.Context, values: dict[str, Any]) -> bool:
    """Whether the model is a file of weights; a single argument may be one, and no layer."""
    from hookscope.stores.weights.open_weights import is_weights

    if ctx.get_parameter_source("model") is not ParameterSource.COMMANDLINE:
        if not is_weights(values["layer"]):
            return False
        values["model"], values["layer"] = values["layer"], "."
    return is_weights(values["model"])


def _draw_weights(
    console: Console, output: str | None, force: bool, dpi: int, values: dict[str, Any]
) -> None:
    from hookscope.stores.weights.open_weights import default_stem

    stem = default_stem(values["model"])
    path, replaces = picture_options.resolve_picture_path(output, force, stem, "filters")
    console.interrupt_message = "Interrupted; nothing was written."
    with reading(console, f"Reading {values['model']} ...", values["trust"]):
        from hookscope.api.filters import filters as api_filters

        drawing = api_filters(**values)
    picture_options.write_picture(console, drawing, path, replaces, dpi, "filters")


def _check_layer(layer: str) -> None:
    """Raise RequestError if the only argument is a model, so that the layer is missing."""
    from hookscope.specs.catalog import bundled_models

    is_spec = ":" in layer or layer.endswith((".py", ".pt", ".pt2"))
    if is_spec or any(layer == info.name for info in bundled_models()):
        raise RequestError(
            f"No layer of {layer} is given.",
            f"Add one: hookscope filters {quote_word(layer)} LAYER."
            f" {cite_command('hookscope', 'tree', layer, '--leaves')} lists the layers.",
        )
