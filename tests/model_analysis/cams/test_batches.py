"""Images of one batch: the map of each is that of the image alone, by every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

import hookscope
from hookscope.specs.cam_methods import METHODS
from tests.model_analysis.cams.models import (
    functions,
    images,
    seeded,
    vit,
)


class MaximumOverTokens(VisionTransformer):
    """Each image reads other tokens: those with the largest value of a channel. Has a ReLU."""

    def __init__(self) -> None:
        super().__init__(32, 8, 2, 2, 16, 32, num_classes=5)
        for block in self.encoder.layers:
            block.mlp[1] = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._process_input(x)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.heads(self.encoder(tokens).amax(1))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (method, kind)
        for method in METHODS
        for kind in (functions, MaximumOverTokens, vit)
        if (method, kind) not in (("rollout", functions), ("guided", vit))  # no attention, no ReLU
    ],
)
def test_the_map_of_an_image_does_not_depend_on_the_batch(method: str, kind: Any) -> None:
    model, x, targets = seeded(kind()), images(3, 3, 32, 32), [3, 0, 1]
    if kind is MaximumOverTokens:
        nn.init.ones_(model.encoder.ln.bias)  # or the map of scorecam is zero everywhere
    x[1] = x[1] * 4 - 2
    batch = hookscope.cam(model, input=x, target=targets, by=method)
    maps, metadata = batch["./cam"], batch.metadata["cam"]
    assert not torch.allclose(maps[0], maps[1])
    for n, target in enumerate(targets):
        alone = hookscope.cam(model, input=x[n : n + 1], target=target, by=method)
        torch.testing.assert_close(maps[n : n + 1], alone["./cam"], rtol=1e-9, atol=1e-12)
        entry = alone.metadata["cam"]
        assert metadata["images"][n]["peak"] == entry["images"][0]["peak"]
        assert metadata.get("tokens", [None] * 3)[n] == entry.get("tokens", [None])[0]
