"""A wrapped module is the module, with functions around its forward."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError, RequestError
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.oracle.by_hand import same_bits

SAMPLES = REPO / "sample_models"
X = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))


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


def test_modes_and_devices_pass_through() -> None:
    made = hookscope.wrap(nn.Dropout(0.5), after=halve)
    assert not made.eval().training
    assert made(torch.ones(3)).tolist() == [0.5, 0.5, 0.5]
    assert hookscope.wrap(nn.Linear(1, 1)).to(torch.float64).weight.dtype == torch.float64


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(RequestError, match="int"):
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

    def look(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        seen.extend((grad_input[0].clone(), grad_output[0].clone()))
        modules.append(module)

    modules: list[nn.Module] = []
    wrapped = hookscope.wrap(net, after=halve, backward=look)
    wrapped(x).sum().backward()
    assert modules == [wrapped]
    net.register_forward_hook(halve)
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


@pytest.mark.parametrize("place", ["before", "after", "backward"])
def test_what_has_another_shape_is_refused_where_it_is_returned(place: str) -> None:
    def shorter(module: nn.Module, value: Any, output: Any = None) -> Any:
        return (output if place == "after" else value[0])[:1]

    wrapped = hookscope.wrap(nn.Linear(2, 2), **{place: shorter})
    with pytest.raises(HookscopeError, match=r"shorter .*1x2.*3x2"):
        wrapped(Y.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("place", ["before", "after", "backward"])
def test_what_is_no_function_cannot_be_wrapped_around_a_module(place: str) -> None:
    with pytest.raises(RequestError, match=f"{place} .* int"):
        hookscope.wrap(nn.Linear(2, 2), **{place: 3})


def test_a_forward_of_its_own_is_kept_inside() -> None:
    inner = nn.Linear(2, 2)
    inner.forward = lambda x: x * 3  # type: ignore[method-assign]
    wrapped = hookscope.wrap(inner, after=lambda m, i, o: o + 1)
    assert same_bits(wrapped(Y), Y * 3 + 1)
    wrapped.register_buffer("extra", torch.ones(1))
    assert "extra" not in inner._buffers and list(inner.state_dict()) == ["weight", "bias"]


def test_a_wrapped_module_of_any_class_goes_by_its_name_and_can_be_pickled() -> None:
    home = types.ModuleType("a_module_of_ones_own")
    made = type("Own", (nn.Linear,), {"__module__": home.__name__, "__doc__": "Its text."})
    home.Own = made  # type: ignore[attr-defined]
    sys.modules[home.__name__] = home
    try:
        wrapped = hookscope.wrap(made(2, 2), after=plus_one)
        kind = type(wrapped)
        assert (kind.__name__, kind.__qualname__) == ("Own", "Own")
        assert (kind.__module__, kind.__doc__) == (home.__name__, "Its text.")
        assert same_bits(pickle.loads(pickle.dumps(wrapped))(Y), wrapped(Y))
        assert same_bits(copy.deepcopy(wrapped)(Y), wrapped(Y))
    finally:
        del sys.modules[home.__name__]


def plus_one(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    return output + 1


def test_what_a_wrapped_module_returns_is_what_its_functions_made_of_it() -> None:
    inner = nn.Linear(2, 2)

    def before(module: nn.Module, input: tuple[Tensor, ...]) -> Any:
        return input[0] + 1

    def after(module: nn.Module, input: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * input[0].sum()

    wrapped = hookscope.wrap(inner, before=before, after=after)
    assert same_bits(wrapped(Y), inner(Y + 1) * (Y + 1).sum())
    nothing = hookscope.wrap(inner, lambda m, i: None, lambda m, i, o: None, lambda m, i, o: None)
    assert same_bits(nothing(Y), inner(Y))
    as_tuple = hookscope.wrap(inner, before=lambda m, i: (i[0] * 2,))
    assert same_bits(as_tuple(Y), inner(Y * 2))
