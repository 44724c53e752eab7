"""What is seen of an opened module while it runs: hooks, errors, printing, what it lets go."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.sources.torchscript.examples import difference, outcome, quietly, saved
from tests.sources.torchscript.programs_classes import Color
from tests.sources.torchscript.programs_traced import SEQUENCE, traced_constants
from tests.sources.torchscript.tables import EXAMPLES, write

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated")
ROW = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


Opened = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """What is called of an example, in a file of its own."""

    def open_one(table: str, name: str) -> Callable[..., Any]:
        whole = hookscope.load_model(write(table, tmp_path / "model.pt", only=name)).module
        example = EXAMPLES[table][name]
        return getattr(whole, example.module) if example.module else example.of(whole)

    return open_one


def opened_of(module: nn.Module, folder: Path) -> nn.Module:
    return hookscope.load_model(saved(module, folder / "model.pt")).module


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (1, ValueError, "must not be negative: 1"),
        (3, IndexError, "index 3"),
        # A class of the program is not one of Python's.
        (4, RuntimeError, "tests.sources.torchscript.programs_control.Unhappy: not happy"),
        (6, AssertionError, "n is 6"),
        (8, RuntimeError, "high"),
    ],
)
def test_an_exception_keeps_its_kind_and_message(
    number: int, kind: type[Exception], message: str, opened: Opened
) -> None:
    error = outcome(opened("control", "failing"), (number,)).error
    assert type(error) is kind and str(error) == message


def test_printing_goes_where_python_prints(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    opened("control", "printing")(4)
    assert capsys.readouterr().out == "n is 4 1.5 [1, 2] None text True\n"


def test_a_warning_is_a_warning(opened: Opened) -> None:
    with pytest.warns(UserWarning, match="a warning of 3") as caught:
        opened("control", "warning")(3)
    assert len(caught) == 1


def test_gradients_are_on_again_after_an_error(opened: Opened) -> None:
    error = outcome(opened("control", "no_gradients_inside"), (torch.ones(2), 0)).error
    assert isinstance(error, ValueError)
    assert torch.is_grad_enabled()


def test_the_caller_keeps_its_own_lists(opened: Opened) -> None:
    given = [3, 1, 2]
    assert opened("containers", "list_grows")(given, 5)[0] != given
    assert given == [3, 1, 2]


def test_an_enum_that_python_knows_is_python_s_own(opened: Opened) -> None:
    assert opened("classes", "enum_as_argument")(Color.GREEN)[1] is Color.BLUE


def calls_of(module: nn.Module, *arguments: Any) -> list[str]:
    """The names of the modules that hooks saw finish, in that order."""
    seen: list[str] = []
    for name, inner in module.named_modules():
        inner.register_forward_hook(lambda m, i, o, name=name: seen.append(name))
    module(*copy.deepcopy(arguments))
    return seen


@pytest.mark.parametrize(
    ("table", "name", "arguments", "expected"),
    [
        (
            *("modules", "ListOfModules", (ROW,)),
            "items.0 items.1 items.2 items.0 more.0 items.1 more.1 items.0 items.2",
        ),
        ("modules", "InterfaceChosenAtRunTime", (ROW, 1, "a"), "layer layers.1 table.a"),
        ("modules", "ForkOfASubmodule", (ROW,), "inner inner"),
        ("traced", "PackedSequences", (SEQUENCE, torch.tensor([5, 3])), "lstm lstm"),
        ("modules", "SharedModules", (ROW,), "one two three.0 three.1 three"),
        ("modules", "hooks_on_submodules", (ROW,), "0 1 2 3"),
        ("traced", "traced_module_called_twice", (ROW,), "inner inner inner"),
    ],
)
def test_hooks_fire_at_every_call(
    table: str, name: str, arguments: tuple[Any, ...], expected: str, opened: Opened
) -> None:
    assert calls_of(opened(table, name), *arguments) == [*expected.split(), ""]


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
    @torch.jit.export
    def same(self, a: str, b: str) -> bool:
        return a is b

    @torch.jit.export
    def saves(self, x: Tensor) -> int:
        torch.save([x], "stolen.pt")
        return 0

    @torch.jit.export
    def maps(self, x: Tensor) -> Tensor:
        return torch.ops.aten.from_file("made.bin", True, 4, out=x)

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        if flag:
            y = torch.from_file("nothing", size=3)
            return x + y
        return x + 1


def test_what_cannot_be_interpreted_says_so_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = opened_of(Refused(), tmp_path)
    assert torch.equal(module(ROW, False), ROW + 1)
    for method, arguments, subject in (
        ("forward", (ROW, True), "aten::from_file"),
        ("same", ("a", "a"), "aten::__is__"),
        ("saves", (ROW,), "aten::save"),
        ("maps", (torch.ones(4),), "aten::from_file"),
    ):
        error = outcome(getattr(module, method), arguments).error
        assert isinstance(error, NotImplementedError)
        for part in (subject, f"Refused.{method}", "test_running.py:"):
            assert part in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


class OneTypeOfList(nn.Module):
    def forward(self) -> tuple[bool, bool]:
        a: list[int] = []
        x: Any = a
        return torch.jit.isinstance(x, list[int]), torch.jit.isinstance(x, list[Tensor])


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


def test_a_type_that_a_list_does_not_tell_is_refused(tmp_path: Path) -> None:
    """Of a list in an Any, items alone say which of two types in the program it has."""
    module = opened_of(Ambiguous(), tmp_path)
    assert module(0) == "floats"
    with pytest.raises(TypeError, match="isinstance"):
        module(1)
    assert opened_of(OneTypeOfList(), tmp_path)() == (True, False)


torch.library.define(
    "hookscope_examples::parts", "(Tensor x, int n, int[]? names=None) -> Tensor[]"
)
torch.library.define("hookscope_examples::raise_", "(Tensor(a!) x, float by) -> ()")
torch.library.impl("hookscope_examples::parts", "CPU")(lambda x, n, names=None: list(x.split(n)))
torch.library.impl("hookscope_examples::raise_", "CPU")(lambda x, by: [x.add_(by), None][1])


class CustomOperators(nn.Module):
    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        z = x.clone()
        torch.ops.hookscope_examples.raise_(z, 1.5)
        return torch.ops.hookscope_examples.parts(x, 1), z


class WithTensorDefault(nn.Module):
    def forward(self, x: Tensor, state: Tensor = torch.tensor([1.0, 2.0, 3.0])) -> Tensor:  # noqa: B008
        return x + state


@pytest.mark.parametrize("make", [CustomOperators, WithTensorDefault, traced_constants])
def test_it_gives_what_the_module_gives(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    with quietly():
        given = make()
    module = opened_of(given, tmp_path)
    for x in (ROW, ROW.double()):
        assert not difference(outcome(given, (x,)), outcome(module, (x,)))


def test_a_tensor_as_default_argument_can_be_replaced(tmp_path: Path) -> None:
    module = opened_of(WithTensorDefault(), tmp_path)
    assert torch.equal(module(ROW, torch.zeros(3)), ROW)
    assert module.double()(ROW).device == ROW.device


def test_state_is_the_module_s_own(opened: Opened) -> None:
    module, other = (opened("modules", "StateInAttributes") for _ in range(2))
    module(2)
    assert (module.n, module.items) == (3, [1, 2, 2])
    assert (other.n, other.items) == (1, [1, 2])


def test_a_state_dict_goes_through_a_pickle(opened: Opened) -> None:
    module = opened("modules", "StateInBuffers")
    state = pickle.loads(pickle.dumps(module.state_dict()))
    module(torch.ones(2, 3))
    assert module.count == 1
    module.load_state_dict(state)
    assert module.count == 0
