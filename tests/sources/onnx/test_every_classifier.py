"""A model and its ONNX file on one input: the names of modules, and values against plain hooks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import hookscope
from tests.oracle.by_hand import outputs
from tests.sources.onnx.conftest import export


@dataclass(frozen=True)
class EagerComparison:
    """What an ONNX file has of a model.

    Attributes:
        names: names of the modules in the file.
        unknown: names in the file that the model does not have.
        absent: modules that hookscope calls absent, each with the reason.
        silent: modules that are neither in the file nor called absent.
        deviations: for each call of a module that is in both, the largest difference relative to
            the largest value.
        cut: modules whose last operation is folded into another module.
        unmatched: calls of modules in the file that the model did not make, or whose output has
            another number of entries. The last reshape of a module may be joined with the next.
        missed: calls of modules in the file that the model made and the file does not have.
    """

    names: frozenset[str]
    unknown: frozenset[str]
    absent: Mapping[str, str]
    silent: frozenset[str]
    deviations: Mapping[str, float]
    cut: frozenset[str]
    unmatched: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def largest(self) -> tuple[float, str]:
        """The largest deviation and its key."""
        return max((value, key) for key, value in self.deviations.items())


def compare_with_eager(
    model: nn.Module,
    path: Path,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> EagerComparison:
    """Export a model to ``path`` and compare every call of every module with plain hooks."""
    inputs = dict(kwargs or {})
    expected = hooked_tensors(model, args, inputs)
    export(model, args, path, **({"kwargs": inputs} if inputs else {}), **options)
    tree = hookscope.tree(path)
    names = frozenset(node.name for node in tree.modules[1:])
    absent = {module.name: module.reason for module in tree.absent}
    own = {name for name, _ in model.named_modules(remove_duplicate=False) if name}
    shot = hookscope.capture(path, input=inputs or (args[0] if len(args) == 1 else args))
    cut = frozenset(n.name for n in tree.modules if n.note.startswith("its last module"))
    deviations, unmatched = {}, []
    for key in shot:
        call, _, leaf = key.partition("/output")
        if call in (".", "") or leaf not in ("", ".0") or call.partition(":")[0] in cut:
            continue
        if call in expected and expected[call].numel() == shot[key].numel():
            deviations[call] = relative_deviation(shot[key].flatten(), expected[call].flatten())
        else:
            unmatched.append(call)
    compared = {*deviations, *unmatched}
    return EagerComparison(
        names,
        names - own,
        absent,
        frozenset(own - names - set(absent)),
        deviations,
        cut,
        tuple(unmatched),
        tuple(c for c in expected if c not in compared and c.partition(":")[0] in names - cut),
    )


def hooked_tensors(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A copy of the first tensor that each call of each module returns, by ``name:call``."""
    values: dict[str, Tensor] = {}
    for key, tensor in outputs(model, *args, **kwargs).items():
        values.setdefault(key.partition("/output")[0], tensor)
    return {call: tensor for call, tensor in values.items() if call != "."}


def relative_deviation(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest value."""
    if not expected.numel():
        return 0.0
    gap = (found.double() - expected.double()).abs().max()
    return float(gap / expected.double().abs().max().clamp_min(1e-30))


CLASSIFIERS = torchvision.models.list_models(module=torchvision.models)
# A small one of each family: five seconds of one core each.
SMALL = ("alexnet", "mobilenet_v3_small", "resnet18", "squeezenet1_1")
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


@pytest.mark.sampled(3)
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
