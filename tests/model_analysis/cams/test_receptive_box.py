"""``cam --receptive LAYER``: the strongest unit of a layer, and the box of what it depends on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import RequestError
from tests.conftest import REPO
from tests.zoo import Module


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
    with pytest.raises(RequestError, match="7 layers"):
        hookscope.cam(net(), input=image, receptive="?")
    with pytest.raises(RequestError, match="box"):
        hookscope.cam(net(), input=image, receptive="2", box=0)


def test_the_strongest_unit_is_one_that_depends_on_the_image() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ConstantPad2d(1, 50.0), nn.Conv2d(4, 5, 3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)).eval()
    images = torch.randn(2, 3, 8, 9)
    shot = hookscope.cam(model, input=images, receptive="1")
    for n, entry in enumerate(shot.metadata["cam"]["images"]):
        output = model[0](images)[n]
        channel, row, column = (int(i) for i in torch.unravel_index(output.argmax(), output.shape))
        assert entry["strongest"]["unit"] == [channel, row + 1, column + 1]
        assert entry["box"] == [column, row, column + 3, row + 3]


def test_an_output_without_a_row_for_each_image_is_refused() -> None:
    """A layer returns (L, N, C), as models of sequences do."""
    model = Module(
        lambda self, x: self.tokens(self.conv(x).flatten(2).permute(2, 0, 1)).mean(0),
        conv=nn.Conv2d(3, 4, 3),
        tokens=nn.Identity(),
    )
    with pytest.raises(RequestError, match="63x1x4"):
        hookscope.cam(model, input=torch.randn(1, 3, 9, 11), receptive="tokens")


def test_an_onnx_file_shows_no_dependencies() -> None:
    model = str(REPO / "sample_models" / "digits.onnx")
    with pytest.raises(RequestError, match="dependencies"):
        hookscope.cam(model, shape=(1, 1, 8, 8), by="eigencam", receptive="conv2")
