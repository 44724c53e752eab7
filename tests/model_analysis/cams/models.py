"""Small models with spatial outputs of every kind, in float64, and an image for each."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

import hookscope
from hookscope.specs.cam_methods import FROM_ATTENTION, METHODS
from tests.zoo import Module

WITHOUT_ATTENTION = [name for name, entry in METHODS.items() if entry.source != FROM_ATTENTION]


def images(*shape: int, seed: int = 3) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(model: nn.Module) -> nn.Module:
    """The model with weights large enough that nothing it computes is near zero."""
    generator = torch.Generator().manual_seed(7)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            fan = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(noise * (1.5 / fan**0.5))
    return model


def functions() -> Module:
    """ReLUs as a function, as a method, in place, and as a module that runs twice."""

    def forward(self: Module, x: Tensor) -> Tensor:
        x = self.act(self.b(F.relu(self.a(x))))
        x = self.act(self.c(x).relu_() - 0.2)
        return self.fc(x.mean((2, 3)))

    convolutions = {k: nn.Conv2d(n, 5, 3, padding=1) for k, n in (("a", 3), ("b", 5), ("c", 5))}
    return Module(forward, **convolutions, act=nn.ReLU(), fc=nn.Linear(5, 4))


def segmenter() -> Module:
    """A class for every position, as torchvision's segmentation models return them."""

    def forward(self: Module, x: Tensor) -> dict[str, Tensor]:
        scores = self.classifier(self.act(self.body(x)))
        return {"out": F.interpolate(scores, x.shape[-2:], mode="bilinear")}

    body = nn.Conv2d(3, 6, 3, stride=2, padding=1)
    return Module(forward, body=body, act=nn.ReLU(), classifier=nn.Conv2d(6, 4, 1))


def about(shot: hookscope.Capture) -> dict[str, Any]:
    """What is told of a map."""
    return shot.metadata["cam"]


def at_layer(shot: hookscope.Capture) -> Tensor:
    """The map on the grid of its layer."""
    return shot[f"{about(shot)['layer']}/cam"]


def output_of(model: nn.Module, layer: nn.Module, x: Any) -> tuple[Tensor, Any]:
    """What the last call of a layer returns, by a hook written here, and what the model returns."""
    kept: list[Tensor] = []
    handle = layer.register_forward_hook(lambda m, i, out: kept.append(out))
    result = model(x)
    handle.remove()
    return kept[-1], result


def gradcam_by_hand(score: Tensor, a: Tensor) -> Tensor:
    """Grad-CAM of a score, at a value (N, C, *grid) that it was computed from."""
    [g] = torch.autograd.grad(score, a, retain_graph=True)
    return (g.mean(tuple(range(2, a.ndim)), keepdim=True) * a).sum(1).relu().detach()


def resnet() -> Any:
    """A ResNet18 with few channels."""
    parts: dict[str, nn.Module] = {
        **{"conv1": nn.Conv2d(3, 8, 7, 2, 3, bias=False), "bn1": nn.BatchNorm2d(8)},
        **{"relu": nn.ReLU(inplace=True), "maxpool": nn.MaxPool2d(3, 2, 1)},
    }
    inputs = 8
    for number, (width, stride) in enumerate(((8, 1), (12, 2), (16, 2), (32, 2)), 1):
        down = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        blocks = BasicBlock(inputs, width, stride, down), BasicBlock(width, width)
        parts[f"layer{number}"], inputs = nn.Sequential(*blocks), width
    parts |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(32, 9)}
    model = nn.Sequential(OrderedDict(parts)).double().eval()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(noise * (2 / parameter[0].numel()) ** 0.5)
    return model


def vit(image: int = 32) -> nn.Module:
    return seeded(VisionTransformer(image, 8, 2, 2, 16, 32, num_classes=5))


def swin() -> nn.Module:
    return seeded(SwinTransformer([4, 4], 12, [2, 2], [2, 2], [4, 4], num_classes=5))
