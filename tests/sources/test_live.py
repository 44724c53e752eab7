"""Live models that do not support hooks are recorded as they are called, and not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.sources.live import as_hookable, hookable
from tests.sources.torchscript.examples import quietly


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)).eval()


def scripted(module: nn.Module) -> torch.jit.ScriptModule:
    with quietly():
        return torch.jit.script(module)


def traced(module: nn.Module) -> torch.jit.ScriptModule:
    with quietly():
        return torch.jit.trace(module, torch.ones(1, 4))


class Holds(nn.Module):
    """An ordinary model with a part that refuses hooks."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.last = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(x))


@pytest.mark.parametrize("made", [scripted, traced])
def test_a_live_model_is_recorded_as_the_one_it_was_made_from_and_gets_gradients(
    made: Callable[[nn.Module], nn.Module],
) -> None:
    x = torch.randn(2, 4)
    eager, live = network(), made(network())
    with hookscope.record(eager, grads=True) as expected:
        eager(x).sum().backward()
    with hookscope.record(live, grads=True) as found:
        live(x).sum().backward()
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert all(parameter.grad is not None for parameter in live.parameters())


def test_a_live_model_is_itself_again_after_an_error() -> None:
    live = scripted(network())
    before = dict(vars(live))
    with pytest.raises(RuntimeError), hookscope.record(live):
        live(torch.ones(1, 5))
    assert dict(vars(live)) == before
    with hookscope.record(live) as shot:
        pass
    live(torch.ones(1, 4))
    assert len(shot) == 0


def test_calls_of_a_part_are_recorded_too() -> None:
    live = scripted(Holds(network()))
    with hookscope.record(live, "part.*") as shot:
        live.part(torch.ones(1, 4))
    assert list(shot) == ["part.0/output", "part.1/output", "part.2/output"]


def test_the_scripted_part_of_an_ordinary_model_is_open() -> None:
    model = Holds(scripted(network())).eval()
    part = model.part
    with hookscope.record(model) as shot:
        model(torch.ones(1, 4))
    assert "part.0/output" in shot and "./output" in shot
    assert model.part is part
    names = [node.name for node in hookscope.tree(model).modules]
    assert names == [".", "part", "part.0", "part.1", "part.2", "last"]
    assert list(hookscope.capture(model, input=torch.ones(1, 4))) == list(shot)
    assert model.part is part


def test_a_model_that_takes_hooks_is_left_alone() -> None:
    model = network()
    assert as_hookable(model) is model
    with hookable(model) as same:
        assert same is model


def test_an_exported_program_is_run_through_its_module() -> None:
    program = torch.export.export(network(), (torch.ones(1, 4),))
    with hookscope.record(program, "0") as shot:
        program.module()(torch.ones(1, 4))
    assert list(shot) == ["0/output"]
    kinds = [node.type for node in hookscope.tree(program).modules]
    assert kinds[1:] == ["Linear", "ReLU", "Linear"]
    assert type(program.module()).__name__ == "GraphModule"
    assert list(hookscope.capture(program, layers="0", input=torch.ones(1, 4))) == ["0/output"]


class Counts(nn.Module):
    """Parts in modes of their own, a buffer and a number that change, a second method."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        self.runs += 1
        return self.drop(self.norm(x))

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return self.norm(x)


@pytest.fixture
def counting() -> torch.jit.ScriptModule:
    live = scripted(Counts()).train()
    live.norm.eval()
    live.drop.eval()
    return live


X = torch.arange(12.0).reshape(3, 4)


def test_each_part_runs_in_its_own_mode_and_what_a_run_changes_is_changed_in_the_live_model(
    counting: torch.jit.ScriptModule,
) -> None:
    expected, before = counting(X), int(counting.norm.num_batches_tracked)
    with hookscope.record(counting):
        assert torch.equal(counting(X), expected)
        counting(X)
    counting(X)
    assert int(counting.norm.num_batches_tracked) == before
    assert (counting.training, counting.norm.training) == (True, False)
    assert (float(counting.seen), counting.runs) == (4.0, 4)


def test_the_live_model_is_led_from_inside_the_block(counting: torch.jit.ScriptModule) -> None:
    with hookscope.record(counting) as shot:
        counting.eval()
        counting.to(torch.float64)
        counting(X.double())
    assert shot["./output"].dtype is torch.float64
    assert not counting.training
    mixed = nn.Sequential(counting, nn.Linear(4, 1))
    with hookscope.record(mixed):
        mixed.train()
    assert counting.training and counting.norm.training


def test_other_methods_are_recorded_too(counting: torch.jit.ScriptModule) -> None:
    with hookscope.record(counting) as shot:
        counting.encode(X)
    assert list(shot) == ["norm/output"]


@pytest.mark.parametrize("make", [scripted, lambda m: torch.export.export(m, (torch.ones(1, 4),))])
def test_recordings_inside_each_other_see_the_same_calls(make: Callable[..., Any]) -> None:
    live = make(network())

    def call() -> None:
        (live.module() if hasattr(live, "module") else live)(torch.ones(1, 4))

    with hookscope.record(live) as outer:
        with hookscope.record(live) as inner:
            call()
        call()
    assert (len(outer), len(inner)) == (8, 4)


def test_a_frozen_live_model_gives_its_operators() -> None:
    with quietly():
        live = torch.jit.freeze(scripted(network()))
    with hookscope.record(live) as shot:
        live(torch.ones(1, 4))
    assert list(shot) == ["linear_1/output", "relu_1/output", "linear_2/output", "./output"]


def moved(self, args: tuple[Tensor]) -> tuple[Tensor]:
    return (self.inner(args[0]) + 1,)


def looked_at(self, args: tuple[Tensor]) -> None:
    print("before")


def scaled(self, args: tuple[Tensor], output: Tensor) -> Tensor:
    return output * args[0]


class Hooked(nn.Module):
    """A module with hooks that are scripted with it, which call another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_forward_pre_hook(moved)
        self.register_forward_pre_hook(looked_at)
        self.register_forward_hook(scaled)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("make", [Hooked, lambda: nn.Sequential(Hooked(), Hooked())])
def test_scripted_hooks_run_as_those_of_the_original(
    make: Callable[[], nn.Module], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    eager, x = make(), torch.randn(2, 4)
    live = scripted(eager)
    with quietly():
        torch.jit.save(live, tmp_path / "net.pt")
    opened_file = hookscope.load_model(tmp_path / "net.pt").module
    shots, printed = [], []
    for module in (eager, live, opened_file):
        with hookscope.record(module, what="input,output") as shot:
            module(x)
        shots.append(shot)
        printed.append(capsys.readouterr().out)
    for shot in shots[1:]:
        assert list(shot) == list(shots[0])
        assert all(torch.equal(shot[key], shots[0][key]) for key in shot)
    assert printed[0] == printed[2] == printed[1] != ""
    assert torch.equal(live(x), eager(x))


def test_a_part_is_called_with_and_without_its_scripted_hooks() -> None:
    live = scripted(Holds(Hooked()))
    x = torch.randn(2, 4)
    with_hooks, without = live.part(x), live.part.forward(x)
    assert not torch.equal(with_hooks, without)
    with hookscope.record(live) as shot:
        assert torch.equal(live.part(x), with_hooks)
        assert torch.equal(live.part.forward(x), without)
    calls = ["part.inner", "part.inner:2", "part", "part.inner:3"]
    assert list(shot) == [f"{call}/output" for call in calls]


class Left(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x)

    @torch.jit.ignore
    def plain(self, x):  # the compiler cannot read annotations here
        return x + 1


def test_a_method_left_to_python_is_named() -> None:
    live = scripted(Left())
    with pytest.raises(NotImplementedError, match=r"Left.forward "), hookscope.record(live):
        live(torch.ones(2))
