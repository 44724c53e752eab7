"""Draw the weights of one layer, of a model or in a file of weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.file_analysis.weights.weight_reader import WeightReader
from hookscope.specs.choices import CHANNEL_ORDERS, COLOR_SCALES, DEFAULT_MODEL, check_choice
from hookscope.specs.request import ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.specs.weight_options import check_model_options
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.images import require_matplotlib
from hookscope.views.images.feature_maps import DEFAULT_COUNT
from hookscope.views.images.figure_labels import recording_caption
from hookscope.views.images.plot_choice import choose_filters

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookscope.views.images.figures.drawing import Drawing


def filters(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    layer: str = ".",
    *,
    channels: Sequence[int] | None = None,
    by: str = CHANNEL_ORDERS[0],
    count: int = DEFAULT_COUNT,
    scale: str = COLOR_SCALES[0],
    dark: bool = False,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
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
        scale: one colour scale for the whole ``grid``, or one for ``each`` channel.
        dark: use a dark background.
        weights: ``random``, ``default``, a name of pretrained weights, or a file (of a sharded set
            its index or its folder).
        rename: prefixes of names in the file, each with its replacement in the model.
        partial: load the weights that match and keep the initial values of the rest.
        model_args: keyword arguments for a class or factory.
        method: the method to run instead of ``forward``, of a model given by its spec.
        attn: how a ``hf:`` model computes attention, such as ``eager``, which shows its weights.
        trust: open an exported program (.pt2) even if it carries pickles that run code.
        onnx_optimize: how far onnxruntime may change the graph of an ONNX file: ``none`` (the
            default), ``basic``, ``extended`` or ``all``.
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
    check_choice("by", by, CHANNEL_ORDERS)
    check_choice("scale", scale, COLOR_SCALES)
    with require_matplotlib():
        from hookscope.views.images.figures.drawing import FigureOptions
    options = FigureOptions(channels, by, count, seed, None, scale == "each", dark)
    if label := label_of_weights(model):
        others = {
            **{"weights": weights != "random", "rename": rename, "partial": partial},
            **{"model_args": model_args, "method": method, "attn": attn},
            "onnx_optimize": onnx_optimize,
            "adapter": adapter,
        }
        check_model_options([name for name, value in others.items() if value], ("trust",), label)
        from hookscope.views.images.figures.weight_figure import draw_filters

        reader = WeightReader(cast("WeightSet", as_weights(model, trust)))
        return draw_filters(reader, choose_filters(reader, layer), options)
    request = Request(
        "filters",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        run=RunOptions(seed),
    )
    from hookscope.model_analysis.layer_weight import read_layer_weight
    from hookscope.views.images.figures.filters_figure import draw_weight

    found = read_layer_weight(request, layer)
    return draw_weight(
        found.name, found.type, found.values, recording_caption(found.origin), options
    )
