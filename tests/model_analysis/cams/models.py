"""Small models with spatial outputs of every kind, in float64, and an image for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from hookscope.specs.cam_methods import FROM_ATTENTION, METHODS

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


class Overwritten(nn.Module):
    """A convolution whose output the next module overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.act(self.conv(x)).flatten(1))


class Functions(nn.Module):
    """ReLUs as a function, as a method, in place, and as a module that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(n, 5, 3, padding=1) for n in (3, 5, 5))
        self.act = nn.ReLU()
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = self.act(self.b(x))
        x = self.act(self.c(x).relu_() - 0.2)
        return self.fc(x.mean((2, 3)))


class Segmenter(nn.Module):
    """A class for every position, as torchvision's segmentation models return them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.act = nn.ReLU()
        self.classifier = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        scores = self.classifier(self.act(self.body(x)))
        return {"out": F.interpolate(scores, x.shape[-2:], mode="bilinear")}


def resnet() -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    model = resnet18(num_classes=9).double().eval()
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
