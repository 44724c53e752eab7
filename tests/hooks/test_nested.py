"""Nested tensors, strided and jagged: values and gradients, recorded by component."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.recordings import BOTH
from tests.oracle.by_hand import same_bits
from tests.zoo import Module

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LAYOUTS = [torch.strided, torch.jagged]
PARTS = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(2, -2, 12).reshape(4, 3)]


def nested(layout: torch.layout, **options: Any) -> Tensor:
    return torch.nested.nested_tensor(PARTS, layout=layout, **options)


def network() -> Module:
    """Uses an input three times, works in place, and passes a tensor through as it is."""
    torch.manual_seed(0)

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.act(self.second(y) * 2)
        result: Tensor = self.same(z) + y * y
        return result

    return Module(
        forward,
        first=nn.Linear(3, 3),
        second=nn.Linear(3, 3),
        act=nn.ReLU(inplace=True),
        same=nn.Identity(),
    )


def loss_of(output: Tensor) -> Tensor:
    return sum(((i + 1) * p.square()).sum() for i, p in enumerate(output.unbind()))  # type: ignore[return-value]


def by_hand(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Values and gradients at every output, component by component, with plain tensor hooks."""
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in net.named_modules():

        def note(module: nn.Module, args: Any, output: Tensor, name: str = name or ".") -> None:
            def arrived(grad: Tensor) -> None:
                for i, part in enumerate(grad.unbind()):
                    found[f"{name}/output.{i}.grad"] = part.clone()

            for i, part in enumerate(output.unbind()):
                found[f"{name}/output.{i}"] = part.detach().clone()
            output.register_hook(arrived)

        handles.append(module.register_forward_hook(note))
    loss_of(net(x)).backward()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_and_gradients_agree_with_plain_hooks(layout: torch.layout) -> None:
    net = network()
    expected = by_hand(net, nested(layout, requires_grad=True))
    bare = [p.grad for p in net.parameters()]
    net.zero_grad()
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        loss_of(net(nested(layout, requires_grad=True))).backward()
    for key, value in expected.items():
        assert same_bits(capture[key], value), key
    for i in range(2):
        assert same_bits(capture[f"first/input.0.{i}"], PARTS[i])
        assert same_bits(capture[f"./input.0.{i}.grad"], capture[f"first/input.0.{i}.grad"])
    for grad, parameter in zip(bare, net.parameters(), strict=True):
        assert grad is not None and parameter.grad is not None
        assert same_bits(grad, parameter.grad)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_share_at_an_input_agrees_with_the_components_run_one_by_one(
    layout: torch.layout,
) -> None:
    net, x = network(), nested(layout)
    found = hookscope.grads(net, input=x, loss=loss_of, what=["input", "param"], verify=True)
    for i, part in enumerate(PARTS):
        y = net.first(part).detach().requires_grad_()
        through = net.act(net.second(y) * 2) + (y * y).detach()
        (expected,) = torch.autograd.grad(((i + 1) * through.square()).sum(), y)
        torch.testing.assert_close(found[f"second/input.0.{i}.grad"], expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients_at_what_functions_return(layout: torch.layout) -> None:
    found = hookscope.grads(network(), input=nested(layout), loss=loss_of, ops=True)
    assert {"./mul.0.grad", "./mul:2.1.grad"} <= set(found)
    assert not any("outside" in absent.reason for absent in found.absent)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("edit", [{"edits": "first=scale:2"}, {"grad_edits": "first=scale:2"}])
def test_edits_of_nested_tensors_are_refused_in_a_sentence(
    layout: torch.layout, edit: dict[str, str]
) -> None:
    with pytest.raises(hookscope.HookscopeError, match="nested"):
        hookscope.grads(network(), input=nested(layout), loss=loss_of, **edit)  # type: ignore[arg-type]


def test_a_hook_that_changes_gradients_takes_jagged_tensors_and_refuses_strided_ones() -> None:
    def double(grad: Tensor) -> Tensor:
        return grad * 2

    net = network()
    options: dict[str, Any] = {"loss": loss_of, "hooks": {".": double}, "hook_kind": "tensor"}
    once = hookscope.grads(net, input=nested(torch.jagged), loss=loss_of)
    twice = hookscope.grads(net, input=nested(torch.jagged), **options)
    torch.testing.assert_close(twice["first/weight.grad"], 2 * once["first/weight.grad"])
    with pytest.raises(hookscope.HookscopeError, match=r"layout torch\.strided"):
        hookscope.grads(net, input=nested(torch.strided), **options)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_nested_input_changed_in_place_changes_the_callers(layout: torch.layout) -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2))
    x = nested(layout)
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        loss_of(net(x)).backward()
    for i, part in enumerate(x.unbind()):
        assert same_bits(part, PARTS[i].relu())
        assert same_bits(capture[f"0/input.0.{i}"], PARTS[i])
        assert torch.equal(capture[f"0/input.0.{i}.grad"] != 0, PARTS[i] > 0)
