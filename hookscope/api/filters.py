"""Draw the weights of one layer of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.prepare import find_model
from hookscope.hooks.layers import Layer, check_not_lazy
from hookscope.hooks.selection import select
from hookscope.specs.choices import CHANNEL_ORDERS, COLOR_SCALES, DEFAULT_MODEL, check_choice
from hookscope.specs.request import ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.views.images import require_matplotlib
from hookscope.views.images.feature_maps import DEFAULT_COUNT
from hookscope.views.images.figure_labels import recording_caption, shape_label
from hookscope.views.images.filter_weights import output_channels_first

if TYPE_CHECKING:
    from hookscope.views.images.figures.drawing import Drawing


def filters(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
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
    seed: int = 0,
) -> Drawing:
    """Draw the weights of one layer: a convolution, a linear layer or an embedding.

    Kernels with three input channels are drawn in colour: a weight of zero is middle grey. If there
    are more, the first 16 are drawn, one panel each. Matrices are drawn completely.

    Args:
        model: the spec of a model, or a module.
        layer: name of the layer, or of one of its parameters.
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
        from hookscope.views.images.figures.filters_figure import draw_weight
    request = Request(
        "filters",
        ModelRequest(model, weights, rename, partial, model_args, method, attn, trust),
        run=RunOptions(seed),
    )
    loaded = find_model(request.model, request.run.seed)
    check_not_lazy(loaded.module)
    name, owner, values = _weights_of(loaded.module, layer, loaded.word)
    tensor = values.detach().cpu()
    # numpy has neither bfloat16 nor the float8s; each of their values is a float32.
    array = (tensor if tensor.dtype is torch.float64 else tensor.float()).numpy()
    caption = recording_caption({"model": {"word": loaded.word, "weights": loaded.weights.word}})
    if owner.type.startswith("ConvTranspose") and array.ndim > 2:
        array = output_channels_first(array, getattr(owner.module, "groups", 1))
    options = FigureOptions(channels, by, count, seed, None, scale == "each", dark)
    return draw_weight(name, owner.type, array, caption, options)


def _weights_of(module: nn.Module, selector: str, model: str) -> tuple[str, Layer, Tensor]:
    """Return the parameter that ``selector`` selects: its name, its layer, and the tensor."""
    above, _, last = selector.rpartition(".")
    named = dict(module.named_parameters(remove_duplicate=False))
    if selector in named:
        [owner] = select(module, [above or "."], word=model)
        name = last
    else:
        matches = select(module, [selector], word=model)
        if len(matches) > 1:
            raise RequestError(
                f"{selector!r} matches {len(matches)} layers, and filters draws only one.",
                f"Name one, such as {matches[0].name}.",
            )
        [owner] = matches
        matrices = {n: p for n, p in owner.module.named_parameters(recurse=False) if p.ndim > 1}
        if not matrices:
            raise RequestError(
                f"{owner.title} ({owner.type}) has no weights of two dimensions or more.",
                f"'hookscope tree {model} --type \"*Conv*\" --type Linear' lists suitable layers.",
            )
        if len(matrices) > 1 and "weight" not in matrices:
            raise RequestError(
                f"{owner.title} ({owner.type}) has several weights: {', '.join(matrices)}.",
                f"Name one of them: {owner.name}.{next(iter(matrices))}",
            )
        name = "weight" if "weight" in matrices else next(iter(matrices))
    values = owner.module.get_parameter(name)
    if values.ndim < 2 or not values.numel():
        raise RequestError(
            f"{selector} ({shape_label(values.shape)}) is empty or has fewer than two dimensions.",
            "Name a layer whose weights have two dimensions or more.",
        )
    full = name if owner.name == "." else f"{owner.name}.{name}"
    return full, owner, values
