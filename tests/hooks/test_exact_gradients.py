"""Recording gradients changes no bit: neither of the output nor of any gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.random_graphs import WIDTH, Pair, RandomGraph, edges_at_outputs, share_by_clone
from tests.hooks.recordings import recorded
from tests.oracle.by_hand import same_bits

WHAT = [["output"], ["input"], ["output", "input"]]


def parameter_keys(model: nn.Module) -> dict[str, nn.Parameter]:
    keys = {}
    for name, parameter in model.named_parameters():
        layer, _, own = name.rpartition(".")
        keys[f"{layer or '.'}/{own}.grad"] = parameter
    return keys


@pytest.mark.parametrize("what", WHAT, ids="+".join)
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_keep_every_bit(seed: int, what: list[str]) -> None:
    net = RandomGraph(seed)
    x = torch.randn(3, WIDTH, requires_grad=True)
    bare, edges = edges_at_outputs(net, x)
    named = parameter_keys(net)
    grads = torch.autograd.grad(
        net.total(bare), [x, *named.values(), *edges.values()], allow_unused=True
    )
    expected = dict(zip(["x", *named, *edges], grads, strict=True))
    with hookscope.record(net, what=what, grads=True) as capture:
        output = net(x)
        net.total(output).backward()
    assert same_bits(bare, output)
    assert x.grad is not None and expected["x"] is not None
    assert same_bits(x.grad, expected["x"])
    for key in named:
        if expected[key] is not None:
            assert same_bits(capture[key], expected[key]), key
    passed_on = {n for n, m in net.named_modules() if isinstance(m, nn.Identity | nn.Dropout)}
    for key in edges if "output" in what else ():
        if expected[key] is not None and key.partition("/")[0] not in passed_on:
            assert same_bits(capture[key], expected[key]), key
    if "input" in what:
        compare_shares(net, x.detach().requires_grad_(), capture, passed_on)


def compare_shares(
    net: RandomGraph, x: Tensor, capture: hookscope.Capture, passed_on: set[str]
) -> None:
    given_twice = {a.module for a in capture.absent if "same tensor" in a.reason}
    for executed in capture.coverage.executed:
        if executed.module in {".", *passed_on, *given_twice}:
            continue
        pair = isinstance(net.get_submodule(executed.module), Pair)
        for what in ("0", "b") if pair else ("0",):
            share = share_by_clone(net, x, executed.module, what)
            key = f"{executed.module}/input.{what}.grad"
            if share is None:
                assert key not in capture
            else:
                assert same_bits(capture[key], share), key


def llama() -> nn.Module:
    """Residual sums of three and more terms in each layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes, **heads)).eval()


def resnet() -> nn.Module:
    """Sums in place."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18().eval()


INPUTS = {llama: torch.arange(18).reshape(2, 9), resnet: torch.linspace(-2, 2, 3072)}


def square_sum(output: Any) -> Tensor:
    return getattr(output, "logits", output).square().sum()


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT, ids="+".join)
@pytest.mark.parametrize("make", INPUTS)
def test_every_parameter_gradient_of_a_real_model_keeps_its_bits(
    make: Any, what: list[str]
) -> None:
    net, x = make(), INPUTS[make]
    x = x if make is llama else x.reshape(1, 3, 32, 32)
    named = parameter_keys(net)
    expected = torch.autograd.grad(square_sum(net(x)), list(named.values()))
    capture = recorded(net, x, loss=square_sum, what=what, grads=True)
    for (key, parameter), grad in zip(named.items(), expected, strict=True):
        assert parameter.grad is not None and same_bits(parameter.grad, grad), key
        assert same_bits(capture[key], grad), key


@pytest.mark.slow
def test_clones_change_no_more_than_the_last_bits() -> None:
    options: dict[str, Any] = {"input": INPUTS[llama], "loss": square_sum, "what": "param"}
    bare = hookscope.grads(llama(), **options)
    hooks = {"*": lambda module, grad_input, grad_output: None}
    cloned = hookscope.grads(llama(), hooks=hooks, hook_kind="backward", **options)
    for key in bare:
        assert (cloned[key] - bare[key]).abs().max() <= 1e-5 * bare[key].abs().max(), key
