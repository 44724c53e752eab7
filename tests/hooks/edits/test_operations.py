"""Every edit does what the same hook written by hand does, bit for bit, on every kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hookscope
from tests.digits_forms import FORMS
from tests.hooks.edits.by_hand import at_gradient, channels, drawn, quantized, replaced
from tests.oracle.by_hand import outputs, same_bits

MODELS = FORMS
X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(5))
CONV1 = "conv1/output"


def noise(x: Tensor, key: str = CONV1) -> Tensor:
    return drawn(torch.randn, x.shape, 0, key)


def kept(x: Tensor) -> Tensor:
    return (drawn(torch.rand, x.shape, 0, CONV1) >= 0.2).float()


EDITS = {
    "zero": replaced(torch.zeros_like),
    "scale:0.5": replaced(lambda x: x * 0.5),
    "clamp:-1,1": replaced(lambda x: x.clamp(-1, 1)),
    "clip:0.5": replaced(lambda x: x.clamp(-0.5, 0.5)),
    "noise:0.1": replaced(lambda x: x + 0.1 * noise(x)),
    "noise:0.5std": replaced(lambda x: x + 0.5 * x.std(correction=0) * noise(x)),
    "mean": replaced(lambda x: x.mean(0, keepdim=True).expand_as(x)),
    "mean:channel": replaced(lambda x: x.mean((0, 2, 3), keepdim=True).expand_as(x)),
    "mean:spatial": replaced(lambda x: x.mean((2, 3), keepdim=True).expand_as(x)),
    "quantize:8": replaced(lambda x: quantized(x, 8)),
    "quantize:3": replaced(lambda x: quantized(x, 3)),
    "dropout:0.2": replaced(lambda x: x * (kept(x) / 0.8)),
    "dtype:bfloat16": replaced(lambda x: x.bfloat16().float()),
    "dtype:float32": replaced(lambda x: x.clone()),
}
SUBSETS = {
    "zero": lambda x: torch.zeros_like(x),
    "scale:-2": lambda x: x * -2,
    "noise:0.1": lambda x: x + 0.1 * noise(x),
    "noise:1std": lambda x: x + 1.0 * x.std(correction=0) * noise(x),
    "mean": lambda x: x.mean(0, keepdim=True).expand_as(x),
    "mean:channel": lambda x: x.mean((0, 2, 3), keepdim=True).expand_as(x),
}
GRADIENTS = {
    "clip:0.001": lambda g, x: g.clamp(-0.001, 0.001),
    "clamp:-0.002,0.001": lambda g, x: g.clamp(-0.002, 0.001),
    "norm:0.01": lambda g, x: g * (0.01 / (g.norm() + 1e-6)).clamp(max=1),
    "norm:1000": lambda g, x: g,
    "scale:0.5": lambda g, x: g * 0.5,
    "zero": lambda g, x: torch.zeros_like(g),
    "noise:0.1": lambda g, x: g + 0.1 * noise(g, "conv2/output.grad"),
    "noise:2std": lambda g, x: g + 2 * g.std(correction=0) * noise(g, "conv2/output.grad"),
    "sign": lambda g, x: g.sign(),
    "l2:0.01": lambda g, x: g + 0.01 * x,
    "l1:0.01": lambda g, x: g + 0.01 * x.sign(),
    "reverse": lambda g, x: -g,
}


@pytest.fixture(params=MODELS)
def word(request: pytest.FixtureRequest, repo: Path) -> str:
    return str(repo / "sample_models" / request.param)


def images(word: str) -> Tensor:
    """A batch of three, or the one image that the exported program was made for."""
    return X[:1] if word.endswith("pt2") else X


def by_hand(word: str, layer: str, hook: Any) -> dict[str, Tensor]:
    """All outputs of a model with one hook more."""
    model = hookscope.load_model(word).module.eval()
    model.get_submodule(layer).register_forward_hook(hook)
    return outputs(model, images(word))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", EDITS)
def test_an_edit_is_the_hook_written_by_hand(word: str, operation: str) -> None:
    shot = hookscope.capture(word, input=images(word), edits=f"conv1={operation}", verify=True)
    clean = hookscope.capture(word, input=images(word))
    expected = by_hand(word, "conv1", EDITS[operation])
    assert set(shot) == {*expected, "conv1/output.unedited"}
    assert all(same_bits(shot[key], expected[key]) for key in expected)
    assert same_bits(shot["conv1/output.unedited"], clean["conv1/output"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operation", SUBSETS)
def test_an_edit_of_channels_leaves_the_others(word: str, operation: str) -> None:
    shot = hookscope.capture(word, input=images(word), edits=f"conv1[3,10-11]={operation}")
    expected = by_hand(word, "conv1", channels([3, 10, 11], SUBSETS[operation]))
    assert all(same_bits(shot[key], expected[key]) for key in expected)


def test_an_edit_of_an_input_is_the_pre_hook_written_by_hand(word: str) -> None:
    shot = hookscope.capture(
        word,
        input=images(word),
        layers="conv2",
        what=["input", "output"],
        edits="input:conv2=scale:3",
    )
    model = hookscope.load_model(word).module.eval()
    model.conv2.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    expected = outputs(model, images(word))
    assert list(shot) == ["conv2/input.0.unedited", "conv2/input.0", "conv2/output"]
    assert same_bits(shot["conv2/output"], expected["conv2/output"])
    assert same_bits(shot["conv2/input.0"], expected["relu1/output"] * 3)
    assert same_bits(shot["conv2/input.0.unedited"], expected["relu1/output"])


def test_edits_of_one_layer_are_applied_in_the_order_given(word: str) -> None:
    first = hookscope.capture(
        word, input=images(word), edits=["fc=scale:2", "fc=clamp:-5,5"]
    ).output
    other = hookscope.capture(
        word, input=images(word), edits=["fc=clamp:-5,5", "fc=scale:2"]
    ).output
    clean = hookscope.capture(word, input=images(word)).output
    assert same_bits(first, (clean * 2).clamp(-5, 5))
    assert same_bits(other, clean.clamp(-5, 5) * 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", GRADIENTS)
def test_an_edit_of_a_gradient_is_the_hook_written_by_hand(word: str, operation: str) -> None:
    found = hookscope.grads(
        word, input=images(word), target=3, grad_edits=f"conv2={operation}", verify=True
    )
    clean = hookscope.grads(word, input=images(word), target=3)
    unedited, edited = found["conv2/output.grad.unedited"], found["conv2/output.grad"]
    value = hookscope.capture(word, input=images(word), layers="conv2")["conv2/output"]
    assert same_bits(unedited, clean["conv2/output.grad"])
    assert same_bits(edited, GRADIENTS[operation](unedited, value))
    later = [key for key in clean if key.startswith(("relu2", "pool", "fc", "./output"))]
    assert all(same_bits(found[key], clean[key]) for key in later)
    assert all(same_bits(found[key], g) for key, g in gradients_by_hand(word, operation).items())


def gradients_by_hand(word: str, operation: str) -> dict[str, Tensor]:
    """The gradients of all parameters and of the input with one hook at the second convolution."""
    model = hookscope.load_model(word).module.eval()
    model.conv2.register_forward_hook(at_gradient(GRADIENTS[operation]))
    x = images(word).clone().requires_grad_()
    torch.nn.functional.cross_entropy(model(x), torch.full((len(x),), 3)).backward()
    found = {f"{'/'.join(n.split('.'))}.grad": p.grad for n, p in model.named_parameters()}
    return {**found, "./input.0.grad": x.grad}
