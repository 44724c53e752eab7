"""Draw the weights of one layer, of a model or in a file of weights."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import click
from click.core import ParameterSource

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.output_file import PICTURE, without_output
from hookscope.cli.runner import NOTHING_WRITTEN, checked_job, job_step, show_picture
from hookscope.commands.subject import as_weights, find_subject
from hookscope.errors import RequestError
from hookscope.files.shell_words import cite_command, quote_word
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.public import Only, handles, public
from hookscope.specs.request import ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.specs.subject_kinds import WEIGHTS
from hookscope.specs.weight_options import WeightTrust
from hookscope.views.images import require_matplotlib
from hookscope.views.images.figures.drawing import Drawing, recording_caption

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookscope.stores.weights.weight_set import WeightSet


@public
def filters(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    layer: str = ".",
    *,
    options: Annotated[PlotOptions, Only("channels", "by", "count", "scale", "dark")],
    loading: ModelRequest,
    run: Annotated[RunOptions, Only("seed")],
    request: Request,
) -> Drawing:
    """Draw the weights of one layer: a convolution, a linear layer or an embedding.

    The model may be a file of weights, which is read without torch. Its names do not tell a
    transposed convolution, whose kernels are drawn with input channels first.

    Kernels with three input channels are drawn in colour: a weight of zero is middle grey. If there
    are more, the first 16 are drawn, one panel each. Matrices are drawn completely.

    Args:
        model: the spec of a model, a module, or weights: a file, a folder or an index.
        layer: name of the layer, or of one of its parameters. In a file of weights a slice may
            follow, and ``.`` is the first tensor with kernels.
        channels: output channels of a convolution to draw.
        by: which channels, if ``channels`` is not given: the first (``index``), those with the
            largest mean absolute weight (``strength``), or ``random`` ones.
        count: the maximum number of channels.
        seed: of random weights, and of randomly selected channels.

    Returns:
        The picture; ``save(path)`` writes it, and ``figure`` is the matplotlib figure.

    Raises:
        ModelError, LayerError: no such model or layer.
        RequestError: the layer has no weights that can be drawn, or an option is wrong.
        EnvironmentFault: matplotlib is not installed.

    Example:
        >>> import hookscope
        >>> hookscope.filters("resnet18", "conv1", count=4).shows
        ('conv1.weight (64x3x7x7): filters 0-3 of 64, in colour',)
    """
    from hookscope.model_analysis.layer_weight import read_layer_weight
    from hookscope.views.images.figures.filters_figure import draw_weight

    require_matplotlib()
    found = read_layer_weight(request, layer)
    caption = recording_caption(found.origin)
    return draw_weight(
        found.name, found.type, found.values, caption, replace(options, seed=run.seed)
    )


filters.find_subject = find_subject


@handles(filters, WEIGHTS)
def filters_of_weights(
    model: str | os.PathLike[str] | WeightSet,
    layer: str = ".",
    *,
    options: Annotated[PlotOptions, Only("channels", "by", "count", "seed", "scale", "dark")],
    pickled: WeightTrust,
) -> Drawing:
    """Draw one tensor of weights."""
    from hookscope.file_analysis.weight_reader import WeightReader
    from hookscope.views.images.plot_choice import choose_filters
    from hookscope.views.images.weight_values import draw_filters

    require_matplotlib()
    reader = WeightReader(cast("WeightSet", as_weights(model, pickled.trust)))
    return draw_filters(reader, choose_filters(reader, layer), options)


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
    options.one_layer,
    options_of(PlotOptions, "channels", "by", "count", "scale", "dark"),
    options.weights,
    options.seed,
    PICTURE.options,
    examples=EXAMPLES,
    main="channels by count weights output model-arg",
    also="dark",
    topics="model-specs weights",
)
def filters_command(ctx: click.Context, **values: Any) -> None:
    """Plot the weights of a layer.

    For a convolution these are its kernels, in colour if it has three input channels; for a linear
    layer or an embedding it is the matrix. MODEL may be a file of weights, which is read without
    torch; without LAYER, its first convolution is drawn.
    """
    console: Console = ctx.obj
    from hookscope.stores.weights.open_weights import default_stem

    values = without_output(values)
    if ctx.get_parameter_source("model") is not ParameterSource.COMMANDLINE:
        _split_argument(values)
    job = checked_job(ctx, filters, values)
    are_weights = job.kind == WEIGHTS
    stem = default_stem(values["model"]) if are_weights else job.request.model.stem
    file = PICTURE.resolve(ctx, stem)
    assert file is not None
    if not are_weights:
        options.note_model_source(ctx)
    console.interrupt_message = NOTHING_WRITTEN
    with job_step(console, job, f"Reading {values['model']} ..."):
        drawing = job()
    show_picture(console, drawing, file, "filters")


def _split_argument(values: dict[str, Any]) -> None:
    """Decide whether the only argument is a layer of the default model, or weights."""
    from hookscope.stores.weights.open_weights import is_weights

    if is_weights(values["layer"]):
        values["model"], values["layer"] = values["layer"], "."
    elif not is_weights(values["model"]):
        _check_layer(values["layer"])


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
