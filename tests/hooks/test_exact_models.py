"""Real architectures: recorded gradients are those of a run without hooks, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.oracle.by_hand import same_bits

pytestmark = pytest.mark.slow


def llama() -> tuple[nn.Module, Tensor]:
    """Residual sums of three and more terms in each layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=2, **sizes, **heads)
    return LlamaForCausalLM(config), torch.randint(0, 50, (2, 9))


def resnet() -> tuple[nn.Module, Tensor]:
    """Sums in place."""
    from torchvision.models import resnet18

    return resnet18(), torch.randn(1, 3, 64, 64)


def logits_of(output: Any) -> Tensor:
    found: Tensor = getattr(output, "logits", output)
    return found


@pytest.mark.parametrize("what", [["output"], ["input"], ["output", "input"]], ids="+".join)
@pytest.mark.parametrize("make", [llama, resnet])
def test_every_parameter_gradient_keeps_its_bits(
    make: Callable[[], tuple[nn.Module, Tensor]], what: list[str]
) -> None:
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    bare = logits_of(net(x))
    named = dict(net.named_parameters())
    expected = torch.autograd.grad(bare.square().sum(), list(named.values()))
    with hookscope.record(net, what=what, grads=True) as capture:
        output = logits_of(net(x))
        output.square().sum().backward()
    assert same_bits(output, bare)
    for (name, parameter), grad in zip(named.items(), expected, strict=True):
        layer, _, own = name.rpartition(".")
        assert parameter.grad is not None and same_bits(parameter.grad, grad), name
        assert same_bits(capture[f"{layer or '.'}/{own}.grad"], grad), name


def test_clones_change_no_more_than_the_last_bits() -> None:
    torch.manual_seed(0)
    net, x = llama()
    net.eval()

    def unchanged(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        return None

    options: dict[str, Any] = {"input": x, "loss": lambda o: logits_of(o).square().sum()}
    bare = hookscope.grads(net, what="param", **options)
    cloned = hookscope.grads(
        net, what="param", hooks={"*": unchanged}, hook_kind="backward", **options
    )
    for key in bare:
        scale = bare[key].abs().max()
        assert (cloned[key] - bare[key]).abs().max() <= 1e-5 * scale, key
