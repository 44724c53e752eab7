"""The dimension of the channels, compared with the layouts of whole models."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from hookscope.results.dimensions import channel_dim, find_channel_dim, layout


@pytest.mark.parametrize(
    ("type", "ndim", "expected"),
    [
        ("Conv2d", 4, 1),
        ("Conv2d", 3, 0),  # without a batch
        ("Conv1d", 3, 1),
        ("LayerNorm", 3, 2),
        ("Linear", 2, 1),
        ("Linear", 4, 3),
        ("Embedding", 4, 3),
        ("ReLU", 4, 1),
        ("ReLU", 1, 0),
        ("Loss", 0, 0),
        ("Linear", 0, 0),
    ],
)
def test_a_class_tells_where_its_channels_lie(type: str, ndim: int, expected: int) -> None:
    assert channel_dim(type, ndim) == expected


def layers_of(model: nn.Module, image: tuple[int, int]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, class and shape of every output of four dimensions, from torch's hooks."""
    found = []

    def look(module: nn.Module, given: Any, output: Any, name: str) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            found.append((name, type(module).__name__, tuple(output.shape)))

    for name, module in model.named_modules():
        module.register_forward_hook(partial(look, name=name))
    with torch.no_grad():
        model.to("meta")(torch.empty(1, 3, *image, device="meta"))
    return found


@pytest.mark.parametrize("image", [(224, 224), (224, 352), (160, 96)])
@pytest.mark.parametrize("name", ["resnet18", "swin_t", "convnext_tiny", "mobilenet_v3_small"])
def test_channels_are_found_in_whole_models_at_any_aspect(
    name: str, image: tuple[int, int]
) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)().eval()
    layers = layers_of(model, image)
    for layer, type, shape in layers:
        last = {  # by torchvision's source
            "swin_t": not layer.startswith(("features.0.0", "permute", "avgpool")),
            "convnext_tiny": ".block." in layer and layer[-1] in "12345",
        }.get(name, False)
        assert find_channel_dim(type, "output", shape, image) == (3 if last else 1), (layer, shape)
    assert len(layers) > 60


def test_where_both_might_be_sides_or_nothing_is_known_channels_come_second() -> None:
    # Of resnet18 on 256x400: as many channels as rows.
    assert find_channel_dim("ReLU", "output", (1, 64, 64, 100), (256, 400)) == 1
    assert find_channel_dim("ReLU", "output", (1, 8, 8, 8), (224, 224)) == 1
    assert find_channel_dim("Block", "output", (1, 7, 7, 768), None) == 1


def test_attention_weights_and_windows_keep_their_order() -> None:
    assert layout("MultiheadAttention", "attention", (1, 12, 12, 16), (12, 12)) == "0CSS"
    assert layout("Conv2d", "param.grad", (7, 7, 7, 3), (224, 224)) == "C0SS"
    assert layout("Block", "output", (1, 8, 7, 7, 96), (224, 224)) == "0MSSC"
