"""Draw the weights of one layer, of a model or in a file of weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, cast

from hookscope.api.public import Given, Only, public
from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.file_analysis.weights.weight_reader import WeightReader
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.request import ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.specs.weight_options import check_model_options
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.images import require_matplotlib
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.images.plot_choice import choose_filters

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookscope.views.images.figures.drawing import Drawing


@public
def filters(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    layer: str = ".",
    *,
    options: Annotated[PlotOptions, Only("channels", "by", "count", "scale", "dark")],
    loading: Given[ModelRequest],
    run: Annotated[Given[RunOptions], Only("seed")],
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
    with require_matplotlib():
        from hookscope.views.images.figures.drawing import FigureOptions
    figure_options = FigureOptions(
        channels=options.channels,
        by=options.by,
        count=options.count,
        seed=run["seed"],
        dim=None,
        each=options.scale == "each",
        dark=options.dark,
    )
    if label := label_of_weights(model):
        check_model_options(loading.chosen, ("trust",), label)
        from hookscope.views.images.figures.weight_figure import draw_filters

        reader = WeightReader(cast("WeightSet", as_weights(model, loading["trust"])))
        return draw_filters(reader, choose_filters(reader, layer), figure_options)
    request = Request("filters", loading.make(model=model), run=run.make())
    from hookscope.model_analysis.layer_weight import read_layer_weight
    from hookscope.views.images.figures.filters_figure import draw_weight

    found = read_layer_weight(request, layer)
    return draw_weight(
        found.name, found.type, found.values, recording_caption(found.origin), figure_options
    )
