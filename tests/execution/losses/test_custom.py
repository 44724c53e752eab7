"""A loss of the user's own: what it gets, what it may return, and where its errors are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import LossError, ModelError, RequestError
from hookscope.execution.loss import resolve_custom_loss
from hookscope.specs.request import ONLY_PYTHON
from tests.oracle.by_hand import same_bits

OUT, IN = torch.arange(6.0).reshape(2, 3), torch.ones(2, 4)


def given(function: Any, target: Any = "3") -> list[Any]:
    """What ``function`` is handed, in the order of its own parameters."""
    seen: list[Any] = []
    loss = resolve_custom_loss(function(seen), None, False)
    assert loss is not None
    loss.compute(OUT, target, IN)
    return seen


def keep(seen: list[Any], *values: Any) -> Tensor:
    seen.extend(values)
    return torch.tensor(0.0)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda seen: lambda output: keep(seen, output), "o"),
        (lambda seen: lambda y: keep(seen, y), "o"),
        (lambda seen: lambda y, t: keep(seen, y, t), "ot"),
        (lambda seen: lambda pred, target: keep(seen, pred, target), "ot"),
        (lambda seen: lambda target, output: keep(seen, target, output), "to"),
        (lambda seen: lambda input, target, output: keep(seen, input, target, output), "ito"),
        (lambda seen: lambda input, y: keep(seen, input, y), "io"),
        (lambda seen: lambda y, *, input: keep(seen, y, input), "oi"),
        (lambda seen: lambda y, scale=2, target=None: keep(seen, y, target), "ot"),
        (lambda seen: lambda y, power=2: keep(seen, y), "o"),
        (lambda seen: lambda *args: keep(seen, *args), "ot"),
        (lambda seen: lambda y, *rest: keep(seen, y, *rest), "ot"),
        (lambda seen: lambda y, **other: keep(seen, y), "o"),
        (lambda seen: lambda output, target, /: keep(seen, output, target), "ot"),
        (lambda seen: lambda *, target, output, **more: keep(seen, target, output), "to"),
        (lambda seen: lambda y, scale=2, *, target: keep(seen, y, target), "ot"),
    ],
)
def test_parameters_get_what_they_are_named_after_else_output_then_target(
    function: Any, names: str
) -> None:
    expected = [{"o": OUT, "t": 3, "i": IN}[name] for name in names]
    found = given(function)
    assert len(found) == len(expected)
    assert all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(found, expected, strict=True)
    )


def target_of(target: Any, categories: tuple[str, ...] = ()) -> Any:
    seen: list[Any] = []
    loss = resolve_custom_loss(lambda y, t: keep(seen, t), None, False)
    assert loss is not None
    return seen, loss.compute(OUT, target, IN, categories).target


def test_targets_are_handed_over_as_typed() -> None:
    assert target_of("dog", ("cat", "dog")) == ([1], "1 (dog)")
    mask = torch.ones(2, dtype=torch.bool)
    assert target_of(mask)[0][0] is mask
    with pytest.raises(LossError, match="No class has the label 'dgo'"):
        target_of("dgo", ("cat", "dog"))


def test_gradients_are_those_of_the_function() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(2, 4)
    goal = torch.randn(2, 3)

    def loss(target: Tensor, output: Tensor, input: Tensor) -> Tensor:
        return ((output - target) ** 3).sum() / input.abs().sum()

    found = hookscope.grads(net, loss=loss, target=goal, input=x, layers=["2"])
    net.zero_grad()
    by_hand = x.clone().requires_grad_()
    loss(goal, net(by_hand), x).backward()
    assert same_bits(found["2/weight.grad"], net[2].weight.grad)
    assert same_bits(found["./input.0.grad"], by_hand.grad)
    assert found.metadata["loss"]["name"] == "loss"
    assert "test_custom.py, line" in found.metadata["loss"]["formula"]
    assert found.metadata["options"]["loss"] == {ONLY_PYTHON: "function"}


@pytest.mark.parametrize("loss", [F.mse_loss, nn.MSELoss()])
def test_torchs_own_losses_call_the_output_input(loss: Any) -> None:
    net, x, goal = nn.Linear(4, 3), torch.randn(2, 4), torch.randn(2, 3)
    found = hookscope.grads(net, loss=loss, target=goal, input=x)
    expected = torch.autograd.grad(F.mse_loss(net(x), goal), net.weight)[0]
    assert same_bits(found["./weight.grad"], expected)


FILE = """
import torch

def fine(output):
    return output.sum()

def rows(output):
    return output.sum(1)

def number(output):
    return output.sum().item()

def apart(output):
    return output.detach().sum()

def raises(output):
    return output.no_such_thing

def mine(input, target):
    return input.sum()

def three(a, b, c):
    return a.sum()

constant = 3
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rows", r"mine.py, line 7: the loss returned 2 of float32\."),
        ("number", r"mine.py, line 10: the loss returned a float\."),
        ("apart", r"mine.py, line 13: the loss does not depend on the model's output\."),
        ("raises", r"mine.py, line 17, raised AttributeError: .*no_such_thing"),
        ("mine", r"mine.py, line 19: the loss does not take the model's output\."),
        ("three", r"mine.py, line 22: there is no value for the parameter 'c'\."),
        ("constant", "constant in .* is not a function"),
        ("fien", "has no function 'fien'.\nDid you mean fine"),
    ],
)
def test_faults_are_told_with_file_and_line(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    with pytest.raises(RequestError, match=sentence):
        hookscope.grads(nn.Linear(4, 3), loss=f"{tmp_path}/mine.py:{name}", input=IN)


def test_a_file_that_is_wrong_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('no')\n")
    (tmp_path / "late.py").write_text("raise KeyError('never run')\n")
    with pytest.raises(ModelError, match=r"broken.py, line 2, raised ValueError: no"):
        hookscope.grads(f"{tmp_path}/late.py:Net", loss=f"{tmp_path}/broken.py:loss")
    with pytest.raises(RequestError, match="There is no file"):
        hookscope.grads("no_such_model", loss=f"{tmp_path}/missing.py:loss")
    with pytest.raises(RequestError, match="does not name a function"):
        hookscope.grads("no_such_model", loss=f"{tmp_path}/broken.py")


@pytest.mark.parametrize(
    ("options", "word"), [({"raw": True}, "raw"), ({"reduction": "sum"}, "reduction")]
)
def test_raw_and_reduction_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(LossError, match=f"{word} is only for the built-in losses"):
        hookscope.grads(nn.Linear(4, 3), loss=lambda y: y.sum(), input=IN, **options)
