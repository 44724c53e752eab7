"""The gradient check: its verdict against torch's own, and where it says a backward is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, LossError, RequestError
from tests.hooks.test_values import hooks_left
from tests.zoo import Module


class Cube(torch.autograd.Function):
    """x^3, with a derivative that is wrong above a border."""

    border = float("inf")

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.where(x > Cube.border, 2 * x**2, 3 * x**2)


def test_the_verdict_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    for border in (float("inf"), 1.5, 0.7):
        monkeypatch.setattr(Cube, "border", border)
        leaf = x.clone().requires_grad_()
        theirs = torch.autograd.gradcheck(Cube.apply, leaf, raise_exception=False)
        assert hookscope.gradcheck(Cube, input=x).ok is theirs


def test_it_names_the_entry_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cube, "border", 1.5)
    result = hookscope.gradcheck(Cube, input=torch.tensor([[0.5, 1.0, 2.0]]))
    [comparison] = result.comparisons
    assert (comparison.compared, comparison.wrong) == (9, 1)
    [entry] = comparison.farthest
    assert (entry.input_index, entry.output_index) == ((0, 2), (0, 2))
    assert entry.analytical == 8
    assert entry.numerical == pytest.approx(12, rel=1e-9)
    assert entry.difference == pytest.approx(4, rel=1e-8)


def test_the_wrong_sample_is_found_from_a_batch_of_two_on(repo: Path) -> None:
    word = f"{repo}/sample_models/wrong_backward.py:ScaleFunction"
    assert hookscope.gradcheck(word, shape=[(1, 3), (3,)]).ok
    result = hookscope.gradcheck(word, shape=[(2, 3), (3,)])
    assert [(c.input, c.wrong) for c in result.comparisons] == [("input.0", 0), ("input.1", 6)]
    for entry in result.comparisons[1].farthest:
        assert entry.analytical == pytest.approx(entry.numerical / 2)


def test_a_numerical_derivative_is_a_central_difference() -> None:
    result = hookscope.gradcheck(nn.Tanh(), input=torch.tensor([0.3]), eps=0.1)
    [entry] = result.comparisons[0].farthest
    x = torch.tensor([0.3]).double()
    assert entry.numerical == float(((x + 0.1).tanh() - (x - 0.1).tanh()) / (2 * 0.1))
    assert entry.analytical == float(1 - x.tanh() ** 2)
    assert not result.ok
    assert hookscope.gradcheck(nn.Tanh(), input=torch.tensor([0.3]), eps=0.1, atol=0.1).ok


def test_nested_outputs_keywords_and_integers() -> None:
    net = Module(lambda self, a, *, b, n: {"sum": a + b, "parts": (a[n] * b[n], n)})
    value = ((torch.ones(2),), {"b": torch.ones(2) * 3, "n": torch.tensor([1])})
    result = hookscope.gradcheck(net, input=value)
    assert result.ok
    assert [(c.input, c.output) for c in result.comparisons] == [
        ("input.0", "output.sum"),
        ("input.0", "output.parts.0"),
        ("input.b", "output.sum"),
        ("input.b", "output.parts.0"),
    ]


def test_a_gradient_that_does_not_come_back_is_told_and_is_not_an_agreement() -> None:
    cut = Module(lambda self, x: x.detach() * 2)
    [comparison] = hookscope.gradcheck(cut, input=torch.ones(2)).comparisons
    assert (comparison.wrong, comparison.note) == (2, "no gradient")
    apart = Module(lambda self, x: torch.zeros(2, requires_grad=True) * 1)
    [comparison] = hookscope.gradcheck(apart, input=torch.ones(2)).comparisons
    assert comparison.wrong == 0 and "depend" in comparison.note


def test_nan_is_wrong() -> None:
    root = Module(lambda self, x: torch.where(x > 0, x, (x - 1).sqrt() * 0 + x))
    assert not hookscope.gradcheck(root, input=torch.tensor([-1.0])).ok


def test_models_that_draw_or_work_in_place_are_checked_too() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.SiLU(inplace=True), nn.Dropout(), nn.Linear(4, 2))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    assert hookscope.gradcheck(net, shape=(2, 3)).ok
    assert all(value.dtype == torch.float32 for value in net.state_dict().values())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert hooks_left(net) == 0
    noisy = Module(lambda self, x: x * torch.rand(3))
    assert hookscope.gradcheck(noisy, shape=(2, 3)).ok


def test_what_cannot_be_checked_is_told_in_a_sentence() -> None:
    with pytest.raises(RequestError, match="the limit is 10,000,000"):
        hookscope.gradcheck(nn.Identity(), shape=(100, 100))
    with pytest.raises(RequestError, match="floating-point"):
        hookscope.gradcheck(nn.Embedding(4, 2), input=torch.tensor([1]))
    with pytest.raises(LossError, match="floating-point"):
        hookscope.gradcheck(Module(lambda self, x: x.argmax()), shape=(3,))

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.sum(0).expand(5)

    with pytest.raises(ForwardError, match=r"backward.*invalid gradient"):
        hookscope.gradcheck(Fails, shape=(3,))


@pytest.mark.parametrize("order", ["rows", "columns", "channels last"])
def test_memory_order_of_inputs_and_outputs_does_not_matter(order: str) -> None:
    net: nn.Module = Module(lambda self, x: (x**2).transpose(0, 1))
    x = torch.randn(2, 3)
    if order == "columns":
        x = torch.randn(3, 2).t()
    if order == "channels last":
        net = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        x = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last)
    assert hookscope.gradcheck(net, input=x).ok


def test_parameters_are_varied_and_put_back_bit_for_bit(repo: Path) -> None:
    word = f"{repo}/sample_models/wrong_backward.py:Scale"
    result = hookscope.gradcheck(word)
    assert [(c.input, c.wrong) for c in result.comparisons] == [("input.0", 0), ("scale", 6)]
    net = nn.Linear(3, 2).double()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    result = hookscope.gradcheck(net, shape=(2, 3))
    assert result.ok and not result.unvaried
    assert [c.input for c in result.comparisons] == ["input.0", "weight", "bias"]
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_parameters_that_are_too_many_are_told() -> None:
    result = hookscope.gradcheck(nn.Linear(101, 100), shape=(1, 101))
    assert result.ok
    assert result.unvaried == "the parameters (10,200 numbers)"


def test_it_works_inside_inference_mode() -> None:
    with torch.inference_mode():
        assert hookscope.gradcheck(nn.Tanh(), shape=(2, 3)).ok


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.eye(2).to_sparse()])
def test_an_empty_or_sparse_input_is_refused(x: Tensor) -> None:
    with pytest.raises(RequestError, match=r"no floating-point values|sparse"):
        hookscope.gradcheck(nn.Tanh(), input=x)
