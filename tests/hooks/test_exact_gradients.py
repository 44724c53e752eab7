"""Recording gradients changes no bit: neither of the output nor of any gradient.

Random small models have tensors with many uses, changes in place, losses kept aside, dead ends.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

import hookscope
from tests.hooks.recordings import recorded
from tests.oracle.by_hand import same_bits

WIDTH = 5


class Gated(nn.Module):
    """Uses its input four times, also through modules of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * torch.sigmoid(self.gate(x)) + x * x.tanh()


class Aside(nn.Module):
    """Keeps a loss on itself that its output does not depend on."""

    loss: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        self.loss = (x * out.detach()).square().mean()
        return out


class DeadEnd(nn.Module):
    """Computes something that nothing depends on."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if (x * 3).sum().item() > 1e9 else x.sin() + x


class Pair(nn.Module):
    """Takes two tensors, the second by name, and returns both mixed."""

    def forward(self, a: Tensor, *, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b + a, b - a.cos() * 0.3


class RandomGraph(nn.Module):
    """A model whose forward pass takes ``steps`` steps, which ``seed`` chooses."""

    def __init__(self, seed: int, steps: int = 14) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        kinds = (nn.Linear, Gated, Aside, DeadEnd, Pair, nn.Identity, nn.Dropout, nn.ReLU, None)
        self.plan: list[tuple[str, int, int]] = []
        for step in range(steps):
            kind: Any = draw.choice(kinds)
            name = ""
            if kind is not None:
                name = f"m{step}"
                args = {nn.Linear: (WIDTH, WIDTH), nn.ReLU: (True,)}.get(kind, ())
                self.add_module(name, kind(*args))
            self.plan.append((name, draw.randrange(99), draw.randrange(99)))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Every tensor may be used by any later step."""
        known = [x * 1.5, x - 0.25]
        for name, first, second in self.plan:
            a, b = known[first % len(known)], known[second % len(known)]
            module = self._modules.get(name)
            if module is None:
                known.append(a + b * 0.5)
            elif isinstance(module, Pair):
                known += module(a, b=b)
            elif isinstance(module, nn.ReLU):  # in place, on a tensor that nothing else needs
                known.append(module(a * 0.7 + b))
            else:
                known.append(module(a))
        return torch.stack(known).mul(torch.linspace(0.3, 1.7, len(known))[:, None, None]).sum(0)

    def total(self, output: Tensor) -> Tensor:
        """A loss on the output and on all that is kept aside."""
        aside = [m.loss for m in self.modules() if isinstance(m, Aside)]
        return output.square().mean() + sum(aside, torch.zeros(()))


def edges_at_outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, GradientEdge]]:
    """Run a model bare, but for hooks that note where in the graph each output stands."""
    edges: dict[str, GradientEdge] = {}
    handles = []
    for name, module in model.named_modules():

        def note(module: nn.Module, args: Any, output: Any, name: str = name or ".") -> None:
            several = output if isinstance(output, tuple) else (output,)
            for i, tensor in enumerate(several):
                what = f"output.{i}" if isinstance(output, tuple) else "output"
                edges[f"{name}/{what}.grad"] = get_gradient_edge(tensor)

        handles.append(module.register_forward_hook(note))
    output = model(x)
    for handle in handles:
        handle.remove()
    return output, edges


def share_by_clone(model: Any, x: Tensor, layer: str, what: str) -> Tensor:
    """The gradient at a clone that one module alone is given in place of one of its inputs."""
    kept: list[Tensor] = []

    def lend(module: nn.Module, args: Any, kwargs: Any) -> Any:
        source = kwargs["b"] if what == "b" else args[0]
        kept.append(source.clone())
        own = kept[0].clone()  # the module may change it in place
        return (args, {"b": own}) if what == "b" else ((own, *args[1:]), kwargs)

    handle = model.get_submodule(layer).register_forward_pre_hook(lend, with_kwargs=True)
    loss = model.total(model(x))
    handle.remove()
    (grad,) = torch.autograd.grad(loss, kept, allow_unused=True)
    return grad


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
