"""One run of A serves both comparisons of ``--local``: the errors are those of separate runs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.diff import local_comparison, paired_runs
from hookscope.results.local_diff import LocalDiff
from tests.zoo import Module

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x)))
        x = self.block(x) + self.block(x * 2)
        return self.last(x)


class Counting(Net):
    """Its state goes on from call to call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.norm.eps = 1e-5 * self.calls
        return super().forward(x) * self.calls


class Closed(Net):
    """A function refers to the model itself, so a copy would call its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Callable[[Tensor], Tensor] = lambda x: self.block(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.act(self.norm(self.first(x)))))


class Locked(Net):
    """It cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Oftener(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(super().forward(x).repeat(1, 2)))


def faulty(a: nn.Module) -> nn.Module:
    b = type(a)()
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        b.get_submodule("block.0").get_parameter("weight")[0] *= 1.1
    return b


def oftener(a: nn.Module) -> nn.Module:
    b = Oftener()
    b.load_state_dict(a.state_dict())
    return b


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], nn.Module], int]] = {
    # A, B, and how many runs of their own the own errors need
    "one fault": (Net, faulty, 0),
    "equal": (Net, copy.deepcopy, 0),
    "a closure": (Closed, faulty, 1),
    "not copied": (Locked, faulty, 1),
    "more calls in B": (Net, oftener, 0),
    "other names": (Net, lambda a: Module(lambda self, x: self.inner(x), inner=faulty(a)), 1),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_one_run_of_a_gives_the_errors_of_separate_runs(
    name: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, change, separate = PAIRS[name]
    a = build()
    b = change(a)
    states = [copy.deepcopy(model.state_dict()) for model in (a, b)]
    runs = []
    own_errors = local_comparison.own_errors

    def counted(*arguments: Any) -> Any:
        runs.append(arguments)
        return own_errors(*arguments)

    def compare() -> LocalDiff:
        for model in (a, b):
            model.__dict__.pop("calls", None)
        found = hookscope.diff(a, b, input=X, floor="none", train=train)
        assert isinstance(found, LocalDiff)
        return found

    monkeypatch.setattr(local_comparison, "own_errors", counted)
    together = compare()
    assert len(runs) == separate
    monkeypatch.setattr(paired_runs, "_student_of", lambda b: None)
    apart = compare()
    assert len(runs) == separate + 1
    assert together.errors == apart.errors
    assert together.diff.rows == apart.diff.rows
    for model, state in zip((a, b), states, strict=True):
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, state[key])


def test_a_copy_that_calls_the_original_has_no_floor_and_does_not_wait_for_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a = Closed()
    with pytest.raises(RequestError, match="of A itself"):
        hookscope.diff(a, faulty(a), input=X, floor="float64")
    with caplog.at_level("INFO", "hookscope"):
        found = hookscope.diff(a, faulty(a), input=X, local=True)
    assert isinstance(found, LocalDiff) and not found.floor
    assert found.faults == hookscope.diff(a, faulty(a), input=X, floor="none").faults
    assert "floor: none" in caplog.text


def test_a_model_whose_state_goes_on_is_compared_in_one_state() -> None:
    a = Counting()
    found = hookscope.diff(a, faulty(a), input=X, floor="none")
    assert isinstance(found, LocalDiff)
    own = {error.key: error.own for error in found.errors if error.own}
    [first] = [error for error in found.errors if error.key == "block.0"]
    assert own == {"block.0": pytest.approx(first.accumulated), "block.0:2": own["block.0:2"]}
