"""The weight of one layer of a model, as an array to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.prepare import find_model
from hookscope.files.shell_words import quote_word
from hookscope.files.words import shape_label
from hookscope.hooks.layers import Layer, check_not_lazy, own_parameters, select
from hookscope.specs.request import Request
from hookscope.views.images.figures.filters_figure import output_channels_first


@dataclass(frozen=True)
class LayerWeight:
    """The weight of a layer."""

    name: str
    type: str
    values: NDArray[Any]
    origin: dict[str, Any]


def read_layer_weight(request: Request, layer: str) -> LayerWeight:
    """Return the weight of a layer of a model."""
    loaded = find_model(request.model, request.run.seed)
    check_not_lazy(loaded.module)
    name, owner, values = _weights_of(loaded.module, layer, loaded.spec)
    tensor = values.detach().cpu()
    # numpy has neither bfloat16 nor the float8s; each of their values is a float32.
    array = (tensor if tensor.dtype is torch.float64 else tensor.float()).numpy()
    if owner.type.startswith("ConvTranspose") and array.ndim > 2:
        array = output_channels_first(array, getattr(owner.module, "groups", 1))
    origin = {"model": {"spec": loaded.spec, "weights": loaded.weights.name}}
    return LayerWeight(name, owner.type, array, origin)


def _weights_of(module: nn.Module, selector: str, model: str) -> tuple[str, Layer, Tensor]:
    """Return the parameter that ``selector`` selects: its name, its layer, and the tensor."""
    above, _, last = selector.rpartition(".")
    named = dict(module.named_parameters(remove_duplicate=False))
    if selector in named:
        [owner] = select(module, [above or "."], spec=model)
        name = last
    else:
        matches = select(module, [selector], spec=model)
        if len(matches) > 1:
            raise RequestError(
                f"{selector!r} matches {len(matches)} layers, and filters draws only one.",
                f"Name one, such as {matches[0].name}.",
            )
        [owner] = matches
        matrices = {n: p for n, p in own_parameters(owner.module).items() if p.ndim > 1}
        if not matrices:
            raise RequestError(
                f"{owner.title} ({owner.type}) has no weights of two dimensions or more.",
                f"'hookscope tree {quote_word(model)} --type \"*Conv*\" --type Linear' lists"
                " suitable layers.",
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
