"""Models of registries: the modules of their ONNX files have the names and values of the models."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from tests.sources.onnx.eager_comparison import EagerComparison, compare_with_eager

CLASSIFIERS = torchvision.models.list_models(module=torchvision.models)
# A small one of each family: five seconds of one core each.
SMALL = (
    *("alexnet", "efficientnet_b0", "googlenet", "mnasnet0_5", "mobilenet_v2"),
    *("mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5"),
    *("squeezenet1_0", "squeezenet1_1", "vgg11"),
)
TOLERANCE = 2e-5  # four times the largest deviation, 4.7e-6 of swin_v2_b
# Modules of these classes change nothing in eval mode, are not called, or only hold others.
SILENT = (nn.Dropout, nn.Identity, torchvision.ops.StochasticDepth)
NOT_CALLED = {
    "googlenet": {"aux1", "aux2"},
    "inception_v3": {"AuxLogits"},
}


def classifier(name: str) -> nn.Module:
    """The model with random weights of seed 0, in eval mode."""
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torchvision.models.get_model(name, weights=None, **options).eval()


def side(name: str) -> int:
    """The smallest image side that the model takes, or nearly so."""
    if name.startswith("vit_") or name == "maxvit_t":
        return 224
    return 96 if name == "inception_v3" else 64


def check(found: EagerComparison, model: nn.Module, uncalled: set[str]) -> None:
    """Every module is in the file, or hookscope or its class says why it is not; values agree."""
    modules = dict(model.named_modules(remove_duplicate=False))
    unexplained = {
        name
        for name in found.silent
        if not isinstance(modules[name], SILENT)
        and any(True for _ in modules[name].children())
        and not uncalled & {".".join(name.split(".")[:n]) for n in range(1, 9)}
    }
    assert not found.unknown and not unexplained
    assert not found.unmatched and not found.missed
    assert found.largest[0] < TOLERANCE, found.largest


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SMALL else pytest.mark.exhaustive)
        for name in CLASSIFIERS
    ],
)
def test_every_classifier_agrees_with_its_file(name: str, tmp_path: Path) -> None:
    model = classifier(name)
    image = torch.randn(1, 3, side(name), side(name), generator=torch.Generator().manual_seed(0))
    found = compare_with_eager(model, tmp_path / "net.onnx", (image,))
    check(found, model, NOT_CALLED.get(name, set()))


def transformer(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model of transformers and its inputs."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "vit":
        config = transformers.ViTConfig(
            **sizes, intermediate_size=32, image_size=16, patch_size=4, attn_implementation="eager"
        )
        return transformers.ViTModel(config).eval(), {"pixel_values": torch.randn(1, 3, 16, 16)}
    ids = {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}
    if kind == "bert":
        config = transformers.BertConfig(**sizes, vocab_size=64, intermediate_size=32)
        return transformers.BertModel(config).eval(), ids
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=64, n_positions=32, use_cache=False
    )
    return transformers.GPT2Model(config).eval(), ids


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "gpt2", "vit"])
def test_a_transformer_agrees_with_its_file(kind: str, tmp_path: Path) -> None:
    model, inputs = transformer(kind)
    found = compare_with_eager(model, tmp_path / "net.onnx", (), inputs)
    check(found, model, set())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto", "vit_tiny_patch16_224"])
def test_a_model_of_timm_agrees_with_its_file(name: str, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    found = compare_with_eager(model, tmp_path / "net.onnx", (torch.randn(1, 3, 224, 224),))
    check(found, model, set())
