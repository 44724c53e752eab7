"""What is seen of an opened module while it runs: hooks, errors, printing, what it lets go."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import load_model as load
from tests.sources.torchscript.examples import Example, outcome, quietly, saved
from tests.sources.torchscript.tables import EXAMPLES

ROW = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def opened(name: str, folder: Path) -> nn.Module:
    return hookscope.load_model(saved(EXAMPLES[name], folder / "model.pt")).module


def opened_of(module: nn.Module, folder: Path) -> nn.Module:
    return hookscope.load_model(saved(Example(lambda: module, ()), folder / "model.pt")).module


def ends(name: str, folder: Path, *arguments: Any) -> BaseException | None:
    return outcome(opened(name, folder), arguments).error


def test_python_s_own_exceptions_are_raised_with_their_message(tmp_path: Path) -> None:
    error = ends("raise_with_a_message", tmp_path, -1)
    assert type(error) is ValueError and str(error) == "must not be negative: -1"


def test_a_class_of_its_own_becomes_a_runtime_error_that_names_it(tmp_path: Path) -> None:
    error = ends("raise_a_class_of_its_own", tmp_path, -1)
    assert type(error) is RuntimeError
    assert "Unhappy" in str(error) and "not happy" in str(error)


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [(0, RuntimeError, "runtime"), (2, IndexError, "index 2")],
)
def test_each_kind_of_exception_keeps_its_kind(
    number: int, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    error = ends("raise_of_several_kinds", tmp_path, number)
    assert type(error) is kind and str(error) == message


def test_an_assertion_is_an_assertion(tmp_path: Path) -> None:
    error = ends("assertion_with_a_message", tmp_path, 0)
    assert type(error) is AssertionError and "n is 0" in str(error)


def test_printing_goes_where_python_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened("PrintsThings", tmp_path)(4)
    assert capsys.readouterr().out == "n is 4 1.5 [1, 2] None text True\n"


def test_a_warning_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a warning of 3"):
        opened("warning", tmp_path)(3)


def test_gradients_are_on_again_after_an_error(tmp_path: Path) -> None:
    assert isinstance(ends("raise_inside_no_grad", tmp_path, torch.ones(2)), ValueError)
    assert torch.is_grad_enabled()


def test_the_caller_keeps_its_own_lists(tmp_path: Path) -> None:
    given = [3, 1, 2]
    assert opened("list_grows", tmp_path)(given, 5)[0] != given
    assert given == [3, 1, 2]


def test_an_enum_that_python_knows_is_python_s_own(tmp_path: Path) -> None:
    from tests.sources.torchscript.programs_classes import Color

    found = opened("enum_returned", tmp_path)(2)
    assert isinstance(found, Enum) and found is Color.GREEN


def calls_of(module: nn.Module, *arguments: Any) -> list[str]:
    """The names of the modules that hooks saw finish, in that order."""
    seen: list[str] = []
    handles = [
        inner.register_forward_hook(lambda m, i, o, name=name: seen.append(name))
        for name, inner in module.named_modules()
    ]
    with quietly():
        module(*copy.deepcopy(arguments))
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        (
            "ListOfModules",
            (ROW,),
            ["items.0", "items.1", "items.2"] * 2 + ["items.0", "items.2", ""],
        ),
        ("InterfaceByRunTimeIndex", (ROW, 1), ["layers.1", ""]),
        ("ForkOfASubmodule", (ROW[:, :2],), ["inner", "inner", ""]),
        ("Overloads", (ROW,), ["inner", "inner", ""]),
        ("SharedModules", (ROW,), ["one", "two", "three.0", "three.1", "three", ""]),
        ("traced_module_called_twice", (ROW,), ["inner"] * 3 + [""]),
        ("hooks_on_a_submodule", (ROW,), ["0", "1", ""]),
    ],
)
def test_hooks_fire_at_every_call(
    name: str, arguments: tuple[Any, ...], expected: list[str], tmp_path: Path
) -> None:
    assert calls_of(opened(name, tmp_path), *arguments) == expected


class Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.ReLU(), nn.Tanh()

    def forward(self, x: Tensor, n: int) -> Tensor:
        a = self.first(x)
        b = self.second(a)
        return self.third(b)


class Branch(Straight):
    def forward(self, x: Tensor, n: int) -> Tensor:
        a = self.first(x)
        if n > 0:
            b = self.second(a)
            c = self.third(b)
        else:
            c = self.third(x)
        return c


class UnusedBranch(Straight):
    def forward(self, x: Tensor, n: int) -> Tensor:
        a = self.first(x)
        b = self.second(x)
        if n < 0:
            b = b + a
        return self.third(b)


class Loop(Straight):
    def forward(self, x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = self.first(x)
            x = self.second(x)
            x = self.third(x)
        return x


class Deep(Straight):
    def forward(self, x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            if n > 0:
                for _ in range(1):
                    x = self.third(self.second(self.first(x)))
        return x


@pytest.mark.parametrize("kind", [Straight, Branch, UnusedBranch, Loop, Deep])
def test_a_value_is_let_go_after_its_last_use(kind: type[Straight], tmp_path: Path) -> None:
    """What ``first`` gives is gone by the time ``third`` runs, without the garbage collector."""
    module = opened_of(kind(), tmp_path)
    kept: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    module.first.register_forward_hook(lambda m, i, o: kept.append(weakref.ref(o)))
    module.third.register_forward_pre_hook(lambda m, i: alive.append(kept[-1]() is not None))
    gc.disable()
    try:
        with torch.no_grad():
            module(ROW, 2)
    finally:
        gc.enable()
    assert alive and not any(alive)


class Refused(nn.Module):
    def forward(self, x: Tensor, flag: bool) -> Tensor:
        if flag:
            y = torch.from_file("nothing", size=3)
            return x + y
        return x + 1


def test_what_cannot_be_interpreted_says_so_where_it_runs(tmp_path: Path) -> None:
    module = opened_of(Refused(), tmp_path)
    assert torch.equal(module(ROW, False), ROW + 1)
    with pytest.raises(NotImplementedError) as error:
        module(ROW, True)
    for part in ("aten::from_file", "Refused.forward", "test_running.py:"):
        assert part in str(error.value)


def test_a_type_that_a_list_does_not_tell_is_refused(tmp_path: Path) -> None:
    """Of a list in an Any, items alone say which of two types in the program it has."""
    module = opened_of(Ambiguous(), tmp_path)
    assert module(0) == "floats"
    with pytest.raises(TypeError, match="isinstance cannot be decided: list may be any of"):
        module(1)


class Ambiguous(nn.Module):
    def forward(self, n: int) -> str:
        floats: list[float] = [1.5]
        ints: list[int] = []
        mixed: list[int | None] = []
        values: list[Any] = [floats, ints, mixed]
        x = values[n]
        if torch.jit.isinstance(x, list[float]):
            return "floats"
        if torch.jit.isinstance(x, list[int]):
            return "ints"
        return "mixed"


class Identity(nn.Module):
    def forward(self, a: str, b: str) -> bool:
        return a is b


def test_identity_of_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"Identity\.forward"):
        opened_of(Identity(), tmp_path)("a", "a")


def test_state_is_the_module_s_own(tmp_path: Path) -> None:
    module = opened("StateInAttributes", tmp_path)
    copied = copy.deepcopy(module)
    module(2)
    assert module.n == 3 and copied.n == 1
    assert module.items == [1, 2, 2] and copied.items == [1, 2]


def test_two_modules_of_one_file_share_nothing(tmp_path: Path) -> None:
    file = saved(EXAMPLES["StateInBuffers"], tmp_path / "model.pt")
    first, second = (hookscope.load_model(file).module for _ in range(2))
    first(torch.ones(2, 3))
    assert first.count == 1 and second.count == 0


def test_a_state_dict_goes_through_a_file(tmp_path: Path) -> None:
    module = opened("StateInBuffers", tmp_path)
    state = pickle.loads(pickle.dumps(module.state_dict()))
    module(torch.ones(2, 3))
    assert module.count == 1
    module.load_state_dict(state)
    assert module.count == 0


class WithTensorDefault(nn.Module):
    def forward(self, x: Tensor, state: Tensor = torch.tensor([1.0, 2.0])) -> Tensor:  # noqa: B008
        return x + state


def test_a_tensor_as_default_argument_is_used_and_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "default.pt"
    with quietly():
        torch.jit.script(WithTensorDefault()).save(str(path))
        expected = torch.jit.load(str(path))
    x = torch.ones(3, 2)
    capture = hookscope.capture(path, input=x)
    assert torch.equal(capture["."], expected(x))
    module = load(path).module
    assert torch.equal(module(x, torch.zeros(2)), x)
    assert torch.equal(module(x.double()), expected(x.double()))
    assert module.double()(x).device == x.device
