"""``cam --receptive LAYER``: the strongest unit of a layer, and the box of what it depends on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import RequestError


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 3)).eval()


def test_the_box_is_the_field_of_the_strongest_unit() -> None:
    model, images = net(), torch.randn(2, 3, 20, 24)
    shot = hookscope.cam(model, input=images, receptive="2")
    for n, entry in enumerate(shot.metadata["cam"]["images"]):
        output = model[:3](images)[n]
        channel, row, column = (int(i) for i in torch.unravel_index(output.argmax(), output.shape))
        assert entry["strongest"]["unit"] == [channel, row, column]
        # 3 then 3 positions, 2 apart: 7, from twice the place on.
        assert entry["box"] == [2 * column, 2 * row, 2 * column + 7, 2 * row + 7]


def test_what_draws_no_single_box_is_refused() -> None:
    image = torch.randn(1, 3, 20, 24)
    with pytest.raises(RequestError, match="matches 7 layers"):
        hookscope.cam(net(), input=image, receptive="?")
    with pytest.raises(RequestError, match="both draw a box"):
        hookscope.cam(net(), input=image, receptive="2", box=0)
