"""Receptive fields against gradients, the closed formula, and fields that were worked out by hand.

The oracle by gradients runs a copy of the net with positive weights in float64, in which ReLU is
left out and average pooling stands in for maximum pooling, so that no gradient vanishes.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import hookscope
from hookscope.results.receptive_field import ReceptiveField
from tests.zoo import Module


def fields(model: nn.Module, shape: tuple[int, ...]) -> dict[str, ReceptiveField | None]:
    tree = hookscope.tree(model, receptive=True, shape=shape)
    return {node.name: node.field for node in tree.modules}


def linear_twin(model: nn.Module) -> nn.Module:
    """A copy in which every gradient is positive where there is a path."""
    twin = copy.deepcopy(model).double().eval()
    for parameter in twin.parameters():
        nn.init.constant_(parameter, 1 / max(parameter[0].numel(), 1))
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU | nn.BatchNorm2d):
                setattr(parent, name, nn.Identity())
            if isinstance(child, nn.MaxPool2d):
                assert not child.ceil_mode
                setattr(parent, name, nn.AvgPool2d(child.kernel_size, child.stride, child.padding))
    return twin


def skips() -> Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        x = self.act(self.one(x))
        return self.last(self.pool(torch.cat([x, self.act(self.two(x)) + x], 1)))

    one = nn.Conv2d(2, 4, 3, stride=2, padding=1)
    two = nn.Conv2d(4, 4, 3, padding=4, dilation=4, groups=2)
    rest = {"pool": nn.MaxPool2d(2), "act": nn.ReLU(), "last": nn.Identity()}
    return Module(forward, one=one, two=two, **rest)


def decoder() -> Module:
    return Module(
        lambda self, x: self.last(torch.cat([self.up(self.down(x)), x], 1)),
        down=nn.Conv2d(1, 2, (3, 5), stride=2, padding=(1, 2)),
        up=nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1),
        last=nn.Conv2d(3, 1, 3),
    )


def resized() -> Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = nn.functional.pad(x, (0, 1, 2, 0))
        return self.last(nn.functional.adaptive_avg_pool2d(x, (5, 7)))

    return Module(forward, last=nn.Conv2d(1, 1, 1))


def one_dimension() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 5, 3, groups=2), nn.AvgPool1d(2, 1))


def three_dimensions() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, (1, 2, 3)), nn.ConvTranspose3d(2, 1, 3, 2))


def extents(model: nn.Module, layer: str, shape: tuple[int, ...]) -> dict[tuple[int, ...], list]:
    """For each unit of a layer, the first and last position with a gradient, for each side."""
    twin = linear_twin(model)
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []
    handle = twin.get_submodule(layer).register_forward_hook(lambda m, a, out: kept.append(out))
    twin(x)
    handle.remove()
    found = {}
    for unit in itertools.product(*map(range, kept[0].shape[2:])):
        chosen = kept[0][(0, slice(None), *unit)].sum()
        [gradient] = torch.autograd.grad(chosen, x, retain_graph=True)
        places = gradient[0].abs().sum(0).nonzero()
        found[unit] = [(int(each.min()), int(each.max())) for each in places.T]
    return found


@pytest.mark.parametrize(
    ("make", "layer", "shape"),
    [
        (skips, "one", (1, 2, 25, 19)),
        (skips, "two", (1, 2, 25, 19)),
        (skips, "last", (1, 2, 40, 43)),
        (decoder, "up", (1, 1, 16, 20)),
        (decoder, "last", (1, 1, 16, 20)),
        (resized, "last", (1, 1, 12, 10)),
        (one_dimension, "1", (1, 2, 40)),
        (three_dimensions, "1", (1, 1, 4, 5, 6)),
    ],
)
def test_fields_are_those_of_gradients(
    make: Callable[[], nn.Module], layer: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = make()
    expected = extents(model, layer, shape)
    field = fields(model, shape)[layer]
    assert field is not None
    for side, part in enumerate(field.sides):
        sizes = [ends[side][1] - ends[side][0] + 1 for ends in expected.values()]
        assert part.size == max(sizes)
        assert part.whole == (min(sizes) == shape[2 + side])


@pytest.mark.parametrize("kernels", [(3, 3, 3), (7, 1, 5), (2, 4, 3)])
@pytest.mark.parametrize("strides", [(1, 1, 1), (2, 1, 2), (1, 3, 2)])
def test_a_chain_has_the_closed_formula(kernels: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Araujo et al., 2019 (doi:10.23915/distill.00021): r = 1 + sum (k - 1) times the jump."""
    layers = [nn.Conv1d(1, 1, k, s, k // 2) for k, s in zip(kernels, strides, strict=True)]
    found = fields(nn.Sequential(*layers), (1, 1, 200))
    size, jump, centre = 1, 1, 0.0
    for i, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        size += (kernel - 1) * jump
        centre += ((kernel - 1) / 2 - kernel // 2) * jump
        jump *= stride
        [side] = found[str(i)].sides  # type: ignore[union-attr]
        assert (side.size, side.stride, side.centre, side.cut) == (size, jump, centre, False)


def test_resnet18_has_the_known_fields_and_a_relu_hides_none() -> None:
    tree = hookscope.tree("resnet18", receptive=True)
    by_name = {node.name: node.field for node in tree.modules}
    sizes = {name: by_name[name].sides[0].size for name in ("conv1", "layer1", "layer2")}
    assert sizes == {"conv1": 7, "layer1": 43, "layer2": 99}
    assert [side.size for side in by_name["layer4"].sides] == [435, 435]
    assert [side.stride for side in by_name["layer4"].sides] == [32, 32]
    assert all(side.whole for side in by_name["fc"].sides)


@pytest.mark.exhaustive
def test_the_field_of_resnet18_is_that_of_the_gradient_of_a_centre_unit() -> None:
    model = torchvision.models.resnet18()
    twin = linear_twin(model)
    x = torch.ones(1, 3, 640, 640, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []
    twin.layer4.register_forward_hook(lambda m, a, out: kept.append(out))
    twin(x)
    [gradient] = torch.autograd.grad(kept[0][0, :, 10, 10].sum(), x)
    rows = np.flatnonzero(gradient[0].abs().sum((0, 2)).numpy())
    assert rows[-1] - rows[0] + 1 == 435


def test_a_field_beyond_the_input_is_marked_as_cut() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 9, padding=4), nn.Conv2d(1, 1, 9, padding=4))
    [side, _] = fields(model, (1, 1, 12, 12))["1"].sides  # type: ignore[union-attr]
    assert side.cut and not side.whole and side.size == 12


@pytest.mark.parametrize(
    "last",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Sequential(nn.Flatten(2), nn.Softmax(-1)),
        nn.InstanceNorm2d(1),
        nn.Sequential(nn.Flatten(2), nn.LSTM(16, 2)),
    ],
)
def test_layers_over_all_positions_depend_on_all(last: nn.Module) -> None:
    field = fields(nn.Sequential(nn.Conv2d(1, 1, 1), last), (1, 1, 4, 4))["1"]
    assert field is not None and all(side.whole for side in field.sides)


def test_attention_depends_on_all_tokens_and_the_patches_on_their_own() -> None:
    found = fields(torchvision.models.VisionTransformer(64, 16, 1, 2, 32, 64), (1, 3, 64, 64))
    sides = [found[name].sides[1] for name in ("conv_proj", "encoder.layers.encoder_layer_0")]  # type: ignore[union-attr]
    assert (sides[0].size, sides[0].stride, sides[0].centre) == (16, 16, 7.5)
    assert sides[1].whole


def test_entries_that_are_written_to_a_part_of_a_tensor_keep_their_place() -> None:
    def writes(self: Module, x: Tensor) -> Tensor:
        y = x.new_zeros(x.shape)
        y[..., 1:] = x[..., :-1]
        y[..., :1].copy_(x[..., 5:6])
        return self.last(y)

    [side] = fields(Module(writes, last=nn.Identity()), (1, 1, 8))["last"].sides  # type: ignore[union-attr]
    assert side.size == 1 and side.stride is None  # 5, 0, 1, 2, ...


def test_a_model_that_reads_values_runs_for_real() -> None:
    conv = nn.Conv1d(1, 1, 3)
    reads = Module(lambda self, x: self.conv(x) if float(x.sum()) < 1e9 else x, conv=conv)
    [side] = fields(reads, (1, 1, 8))["conv"].sides  # type: ignore[union-attr]
    assert side.size == 3
