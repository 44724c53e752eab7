"""A wrapped module is the module, with functions around its forward."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.oracle.by_hand import same_bits

SAMPLES = REPO / "sample_models"
X = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def halve(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    return output * 0.5


def shift(module: nn.Module, input: tuple[Tensor, ...]) -> Tensor:
    return input[0] + 0.25


def reverse(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[Tensor, ...]:
    return (-grad_input[0],)


@pytest.mark.parametrize("file", FORMS)
def test_a_wrapped_layer_does_what_hooks_by_hand_do(file: str) -> None:
    word = f"{SAMPLES}/{file}"
    expected, model = (hookscope.load_model(word).module for _ in range(2))
    expected.conv2.register_forward_pre_hook(shift)
    expected.conv2.register_forward_hook(halve)
    expected.conv2.register_full_backward_hook(lambda m, into, out: (-into[0],))
    names = list(model.state_dict())
    model.conv2 = hookscope.wrap(model.conv2, before=shift, after=halve, backward=reverse)
    for net in (expected, model):
        net(X).sum().backward()
    assert same_bits(model(X), expected(X))
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert same_bits(one.grad, other.grad)
    assert list(model.state_dict()) == names
    assert same_bits(copy.deepcopy(model)(X), model(X))


def test_it_is_the_module_in_all_that_can_be_asked() -> None:
    inner = nn.Conv2d(1, 4, 3)
    made = hookscope.wrap(inner, after=halve)
    assert isinstance(made, nn.Conv2d) and type(made).__name__ == "Conv2d"
    assert made.kernel_size == (3, 3) and repr(made) == repr(inner)
    assert made.weight is inner.weight
    assert type(made) is type(hookscope.wrap(nn.Conv2d(1, 1, 1)))
    assert same_bits(inner(X) * 0.5, made(X))  # and the module itself is as it was


def test_wrapping_again_adds_further_out() -> None:
    made = hookscope.wrap(hookscope.wrap(nn.Identity(), after=halve), after=lambda m, i, o: o + 1)
    assert made(torch.ones(1)).item() == 1.5


def test_a_recording_sees_what_the_functions_made() -> None:
    net = nn.Sequential(hookscope.wrap(nn.Identity(), before=shift, after=halve))
    shot = hookscope.capture(net, input=torch.ones(1), layers="0", what="input,output", verify=True)
    assert (shot["0/input.0"].item(), shot["0/output"].item()) == (1, 0.625)


def test_a_hook_on_the_wrapped_module_is_none_on_the_module() -> None:
    inner = nn.Identity()
    made = hookscope.wrap(inner)
    made.register_forward_hook(lambda m, i, o: o * 0)
    assert made(torch.ones(1)).item() == 0 and inner(torch.ones(1)).item() == 1


def test_it_works_between_operations_in_place() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.ReLU(inplace=True))
    expected = net(X)
    seen = []
    net[1] = hookscope.wrap(net[1], backward=lambda m, into, out: seen.append(into[0].shape))
    assert same_bits(net(X), expected)
    net(X).sum().backward()
    assert seen == [expected.shape]


def test_what_the_module_changes_in_place_is_changed_for_the_caller() -> None:
    made = hookscope.wrap(nn.ReLU(inplace=True), backward=lambda m, into, out: None)
    x = -torch.ones(2, requires_grad=True).clone()
    made(x)
    assert x.tolist() == [0, 0]


def test_it_can_be_copied_and_pickled() -> None:
    made = hookscope.wrap(nn.Linear(2, 2), after=halve)
    x = torch.ones(1, 2)
    for other in (copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert same_bits(other(x), made(x)) and type(other) is type(made)


def test_modes_and_devices_pass_through() -> None:
    made = hookscope.wrap(nn.Dropout(0.5), after=halve)
    assert not made.eval().training
    assert made(torch.ones(3)).tolist() == [0.5, 0.5, 0.5]
    assert hookscope.wrap(nn.Linear(1, 1)).to(torch.float64).weight.dtype == torch.float64


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(RequestError, match="Expected a model"):
        hookscope.wrap(3)  # type: ignore[arg-type]


def test_a_wrapped_layer_is_not_skipped_by_the_fast_path_of_transformers() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    x = torch.randn(1, 3, 4)
    plain = layer(x)
    layer.linear1 = hookscope.wrap(layer.linear1, after=lambda module, input, output: output * 0)
    with torch.no_grad():
        assert torch.allclose(layer(x), layer(x.clone().requires_grad_()), atol=1e-6)
        assert not torch.allclose(layer(x), plain, atol=1e-2)


def test_backward_sees_what_the_hooks_by_hand_see_beside_after() -> None:
    seen: list[Tensor] = []
    net, x = nn.Linear(2, 2), torch.randn(3, 2, requires_grad=True)

    def double(module: nn.Module, input: Any, output: Tensor) -> Tensor:
        return output * 2

    def look(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        seen.extend((grad_input[0].clone(), grad_output[0].clone()))
        modules.append(module)

    modules: list[nn.Module] = []
    wrapped = hookscope.wrap(net, after=double, backward=look)
    wrapped(x).sum().backward()
    assert modules == [wrapped]
    net.register_forward_hook(double)
    net.register_full_backward_hook(look)
    net(x).sum().backward()
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])


def test_a_parametrized_module_can_be_wrapped_and_the_original_stays() -> None:
    net = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    made = hookscope.wrap(net, after=lambda module, input, output: output + 1)
    x = torch.randn(1, 2)
    assert torch.equal(made(x), net(x) + 1)
    plain = nn.Linear(2, 2)
    weight = plain.weight
    hookscope.wrap(plain).weight = nn.Parameter(torch.zeros(2, 2))
    assert plain.weight is weight
