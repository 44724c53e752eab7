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
from hookscope.specs.losses import FORMULAS
from hookscope.specs.request import ONLY_PYTHON
from tests.oracle.by_hand import same_bits

OUT, IN = torch.arange(6.0).reshape(2, 3), torch.ones(2, 4)


def own(function: Any) -> Any:
    loss = resolve_custom_loss(function, None, False)
    assert loss is not None
    return loss


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
    found: list[Any] = []
    own(function(found)).compute(OUT, "3", IN)
    expected = [{"o": OUT, "t": 3, "i": IN}[name] for name in names]
    assert len(found) == len(expected)
    assert all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(found, expected, strict=True)
    )


def test_targets_are_handed_over_as_typed() -> None:
    seen: list[Any] = []
    loss = own(lambda y, t: keep(seen, t))
    assert loss.compute(OUT, "dog", IN, ("cat", "dog")).target == "1 (dog)"
    mask = torch.ones(2, dtype=torch.bool)
    loss.compute(OUT, mask, IN)
    assert seen[0] == 1 and seen[1] is mask
    with pytest.raises(LossError, match="'dgo'"):
        loss.compute(OUT, "dgo", IN, ("cat", "dog"))


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


class Weighted(nn.Module):
    def forward(self, output: Tensor, target: Any) -> Tensor:
        return output.sum() * target


class Called:
    def __call__(self, output: Tensor) -> Tensor:
        return output.sum()


def test_modules_objects_and_functions_of_c_are_losses() -> None:
    module, called, function = own(Weighted()), own(Called()), own(torch.dist)
    assert (module.name, called.name, function.name) == ("Weighted", "Called", "dist")
    assert module.compute(OUT, 3, None).value.item() == pytest.approx(3 * OUT.sum().item())
    assert torch.equal(called.compute(OUT, "argmax", None).value, OUT.sum())
    found = function.compute(OUT, torch.zeros(2, 3), None)
    torch.testing.assert_close(found.value, OUT.norm())
    assert "dist" in found.formula
    single = own(lambda output: output.sum().reshape(1, 1))
    assert single.compute(OUT, "argmax", None).value.shape == ()
    with pytest.raises(LossError, match="Called"):
        resolve_custom_loss(Called(), "sum", False)


@pytest.mark.parametrize("name", [*FORMULAS, "zzz", None])
def test_the_name_of_a_formula_is_no_function(name: str | None) -> None:
    assert resolve_custom_loss(name, name and "mean", bool(name)) is None


def test_a_function_gets_a_copy_of_the_input_that_is_a_constant() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[Tensor] = []

    def loss(output: Tensor, input: Any) -> Tensor:
        seen.append(input[0])
        return (output * input[0]).sum()

    own(loss).compute(x * 2, "argmax", (x,)).value.backward()
    assert not seen[0].requires_grad and seen[0].data_ptr() != x.data_ptr()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "int"),
        (None, "NoneType"),
        ("x", "str"),
        (torch.ones(2, 3), "2x3 of float32"),
        (torch.tensor(3), "no dimensions of int64"),
        (torch.empty(0), "0 of float32"),
    ],
)
def test_what_is_no_number_is_no_loss(value: Any, said: str) -> None:
    with pytest.raises(LossError, match=f"returned (an? )?{said}") as caught:
        own(lambda output: value).compute(OUT, "argmax", None)
    assert f"{__file__}, line " in str(caught.value)


@pytest.mark.parametrize(
    "function", [lambda a, b, c: 0, lambda target: 0, lambda: 0, lambda y=1: 0]
)
def test_what_nothing_is_there_for_is_refused(function: Any) -> None:
    with pytest.raises(LossError) as caught:
        own(function)
    assert "loss(output)" in caught.value.hint


FILE = """
import sys

def rows(output):
    return output.sum(1)

def number(output):
    return output.sum().item()

def apart(output):
    return output.detach().sum()

def raises(output):
    return helper(output)

def helper(output):
    return output.no_such_thing

def mine(input, target):
    return input.sum()

def three(a, b, c):
    return a.sum()

def ends(output):
    sys.exit(3)

constant = 3
"""


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("rows", 4, "2 of float32"),
        ("number", 7, "float"),
        ("apart", 10, "output"),
        ("raises", 17, "AttributeError: .*no_such_thing"),  # the innermost
        ("mine", 19, "output"),
        ("three", 22, "'c'"),
        ("ends", 26, "SystemExit: 3"),
        ("constant", 0, "constant"),
        ("raise", 0, "'raise'(.|\n)*raises"),
    ],
)
def test_faults_are_told_with_file_and_line(
    tmp_path: Path, name: str, line: int, said: str
) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    place = rf"mine\.py, line {line}\b.*" if line else ""
    with pytest.raises(RequestError, match=place + said):
        hookscope.grads(nn.Linear(4, 3), loss=f"{tmp_path}/mine.py:{name}", input=IN)


def test_the_line_of_a_function_that_raised_is_the_innermost() -> None:
    def helper() -> Tensor:
        raise KeyError("gone")

    line = helper.__code__.co_firstlineno + 1
    with pytest.raises(LossError, match=f"line {line}, .*KeyError: 'gone'") as caught:
        own(lambda output: helper()).compute(OUT, "argmax", None)
    assert "HOOKSCOPE_DEBUG=1" in caught.value.hint


def test_a_file_that_is_wrong_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('no')\n")
    (tmp_path / "late.py").write_text("raise KeyError('never run')\n")
    with pytest.raises(ModelError, match=r"broken.py, line 2, .*ValueError: no"):
        hookscope.grads(f"{tmp_path}/late.py:Net", loss=f"{tmp_path}/broken.py:loss")
    for name, function in (("missing.py", ":loss"), ("broken.py", "")):
        with pytest.raises(RequestError, match=name):
            hookscope.grads("no_such_model", loss=f"{tmp_path}/{name}{function}")


@pytest.mark.parametrize(
    ("options", "word"), [({"raw": True}, "raw"), ({"reduction": "sum"}, "reduction")]
)
def test_raw_and_reduction_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(LossError, match=word):
        hookscope.grads(nn.Linear(4, 3), loss=lambda y: y.sum(), input=IN, **options)
