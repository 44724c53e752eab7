"""Two models run in step: one at a time, each with its own randomness, and nothing left behind."""

from __future__ import annotations

import copy
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, RequestError
from hookscope.model_analysis.diff import local_comparison, paired_runs
from hookscope.model_analysis.diff.batch_statistics import statistic_distances
from hookscope.results.local_diff import LocalDiff
from tests.hooks.test_values import hooks_left
from tests.model_analysis.diff.nets import single
from tests.processes import run_python
from tests.zoo import Module

X = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))

MEMORY = """
import sys, torch, hookscope
from pathlib import Path
from torch import nn

class Shift(nn.Module):
    def forward(self, x):
        return x + 0.5

def peak():  # of this process alone: that of getrusage has the parent's in it
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    return int(line.split()[1]) * 1024

def deep():
    return nn.Sequential(*(Shift() for _ in range(40)))

x = torch.zeros(1 << 19)
models = deep(), deep()
hookscope.diff(*models, input=x[:10].clone())
before = peak()
if sys.argv[1] == "diff":
    assert len(hookscope.diff(*models, input=x).rows) == 41
else:
    kept = [hookscope.capture(model, input=x) for model in models]
print((peak() - before) / (x.numel() * x.element_size()))
"""


def noisy(times: int) -> Module:
    """Draws from every generator, and a number of times that depends on the model."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + random.random() + float(np.random.rand())
        for _ in range(times):
            torch.rand(1)
        return x

    return Module(forward, layers=nn.ModuleList(nn.Dropout(0.5) for _ in range(4)))


class Odd(nn.Module):
    """Counts its runs; in all but the first ones, its second layer does something odd."""

    def __init__(self, works: int, odd: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        owner, self.runs = self, 0
        self.first = nn.Linear(8, 8)
        self.second = Module(lambda part, x: odd(x) if owner.runs > works else x)

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.second(self.first(x))


def fail(x: Tensor) -> Tensor:
    raise RuntimeError("planted")


def test_each_model_draws_its_own_random_numbers() -> None:
    a, b = noisy(0), noisy(3)
    found = hookscope.diff(a, b, input=X, train=True)
    assert found.same and found.counts["equal"] == 5
    alone = hookscope.capture(a, input=X, train=True)
    assert hookscope.diff(copy.deepcopy(a), a, input=X, train=True).counts["equal"] == 5
    assert not torch.equal(alone["layers.0/output"], X)  # dropout did something


def test_layers_in_another_order_are_matched_by_name() -> None:
    def backwards(self: Any, x: Tensor) -> Tensor:
        right = self.right(x)
        return self.left(x) + right

    layers = {"left": nn.Linear(8, 8), "right": nn.Linear(8, 8)}
    a = Module(lambda self, x: self.left(x) + self.right(x), **layers)
    found = hookscope.diff(a, Module(backwards, **layers), input=torch.ones(1, 8))
    assert [row.key for row in found.rows] == ["left/output", "right/output", "./output"]
    assert found.counts["equal"] == 3


def test_one_module_and_shared_parts_are_compared_with_themselves() -> None:
    model = single().eval()
    assert hookscope.diff(model, model, input=X).same
    part = nn.Sequential(model.stem, model.act, model.body)
    found = hookscope.diff(part, model, input=X, map={"0": "stem", "1": "act", "2": "body"})
    assert [row.key for row in found.rows if row.verdict != "equal"] == ["./output"]
    assert [row.by for row in found.rows][:2] == ["map", "map"]
    assert hooks_left(model) == 0


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_one_module_that_cannot_be_copied_is_refused() -> None:
    model = nn.utils.weight_norm(nn.Linear(4, 4))
    model(torch.ones(1, 4))  # from now on its weight is no leaf
    with pytest.raises(RequestError, match="cannot be copied"):
        hookscope.diff(model, model, input=torch.ones(1, 4))


@pytest.mark.parametrize("works", [0, 1], ids=["by-name", "in-the-second-run"])
def test_a_failure_ends_both_and_takes_every_hook_off(works: int) -> None:
    names = ("first", "second") if not works else ("one", "two")
    good = nn.Sequential()
    good.add_module(names[0], nn.Linear(8, 8))
    good.add_module(names[1], nn.Identity())
    there = dict(zip(("first", "second"), names, strict=True)) if works else {}
    back = {new: old for old, new in there.items()}
    for side, map in (("A", there), ("B", back)):
        odd = Odd(works, fail)
        pair = (odd, good) if side == "A" else (good, odd)
        threads = set(threading.enumerate())
        with pytest.raises(ForwardError, match=f"{side}: .* second .*planted") as caught:
            hookscope.diff(*pair, input=torch.ones(1, 8), map=map)
        assert caught.value.layer == "second"
        assert [hooks_left(model) for model in pair] == [0, 0]
        assert set(threading.enumerate()) <= threads


@pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent to one thread")
def test_ctrl_c_ends_both_and_takes_every_hook_off() -> None:
    def interrupt(x: Tensor) -> Tensor:  # in step, while the main thread waits
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return x

    a, b = Odd(1, interrupt), nn.Sequential(nn.Linear(8, 8))
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        hookscope.diff(a, b, input=torch.ones(1, 8), map={"first": "0"})
    assert (hooks_left(a), hooks_left(b)) == (0, 0)
    # A thread that Ctrl-C meets on its last lines takes a moment more. Python also lists one whose
    # start was interrupted before it ran, which has no ident.
    for thread in set(threading.enumerate()) - threads:
        if thread.ident is None:
            continue
        thread.join(timeout=300)
        assert not thread.is_alive()


def test_compiled_models_run_as_written_and_are_compiled_again_afterwards() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    a, b = (torch.compile(copy.deepcopy(model), backend="eager") for _ in range(2))
    assert hookscope.diff(a, b, input=torch.ones(1, 8)).counts["equal"] == 3
    assert hookscope.diff(model, a, input=torch.ones(1, 8)).same
    assert torch.compiler.is_compiling() is False
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_model_that_ends_early_the_second_time_leaves_the_rest_out() -> None:
    runs: list[int] = []
    parts = {"first": nn.Linear(8, 8), "second": nn.Identity()}

    def forward(self: Any, x: Tensor) -> Tensor:
        runs.append(1)
        return self.first(x) if len(runs) > 1 else self.second(self.first(x))

    short, plain = Module(forward, **parts), nn.Sequential(*parts.values())
    map = {"0": "first", "1": "second"}
    found = hookscope.diff(plain, short, input=torch.ones(1, 8), map=map)
    assert [row.key for row in found.rows] == ["0/output", "./output"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_holds_a_few_tensors_and_not_two_captures(clean_environment) -> None:
    # Of the C library alone: memory that is freed goes back at once, and so is not counted twice.
    environment = clean_environment | {"MALLOC_MMAP_THRESHOLD_": "1500000"}

    def tensors_at_the_peak(way: str) -> float:
        return float(run_python("-c", MEMORY, way, env=environment, status=0).stdout)

    assert tensors_at_the_peak("diff") < 20
    assert tensors_at_the_peak("captures") > 82  # 41 tensors of each of the two


@pytest.mark.parametrize("seed", [0, 3])
def test_both_models_begin_with_the_seed(seed: int) -> None:
    found = hookscope.diff(nn.Dropout(0.5), nn.Dropout(0.3), input=X, train=True, seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        a = nn.functional.dropout(X, 0.5)
        torch.manual_seed(seed)
        b = nn.functional.dropout(X, 0.3)
    [row] = found.to_json()["rows"]
    assert row["max_abs"] == float((a - b).abs().max())


# A model in training mode beside one in evaluation mode


def test_the_distance_in_standard_errors_is_that_of_numpy() -> None:
    values = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, var = torch.tensor([0.0, 0.5, -1.0]), torch.tensor([1.0, 2.0, 0.5])
    x = values.double().numpy().reshape(7, 3, 20)
    center = x.mean(axis=(0, 2))
    rows = {"mean": x.mean(2), "variance": ((x - center[:, None]) ** 2).mean(2)}
    found = statistic_distances(values, mean, var)
    for (name, samples), running in zip(rows.items(), (mean, var), strict=True):
        error = samples.std(0, ddof=1) / np.sqrt(7)
        expected = np.median(np.abs(samples.mean(0) - running.numpy()) / error)
        assert found[name] == pytest.approx(expected, rel=1e-6)


def _model(shift: float) -> tuple[nn.Module, torch.Tensor]:
    """A batch norm whose running statistics are those of the input, but for a shift of the mean."""
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    norm = nn.BatchNorm1d(6)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.copy_(x.mean(0) + shift)
    norm.running_var.copy_(x.var(0, correction=0))
    return nn.Sequential(norm, nn.ReLU()).eval(), x


@pytest.mark.parametrize(("shift", "is_far"), [(0.0, False), (3.0, True)])
def test_a_batch_norm_with_other_statistics_than_the_batch_is_said(
    shift: float, is_far: bool
) -> None:
    (a, x), (b, _) = _model(shift), _model(shift)
    for options in ({}, {"floor": "float64"}):
        found = hookscope.diff(a, b, input=x, train_a=True, **options)
        document = found.to_json()
        notes = [row["reason"] for row in document["rows"]]
        assert found.same is not is_far
        assert ("mean" in notes[0]) is is_far
        assert notes[1:] == ["", ""]
    assert not a.training and not b.training


def test_each_side_has_its_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))

    def same(**modes: bool) -> bool:
        return hookscope.diff(net, copy.deepcopy(net), input=torch.ones(8, 4), **modes).same

    assert same() and same(train=True) and same(train_a=True, train_b=True)
    assert not same(train_a=True, train_b=False) and not same(train=True, train_a=False)
    assert same(train=True, train_a=False, train_b=False)


# One run of A serves both comparisons: the errors are those of separate runs


ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


def plain(self: Any, x: Tensor) -> Tensor:
    x = self.act(self.norm(self.first(x)))
    x = self.block(x) + self.block(x * 2)
    return self.last(x)


def net(forward: Callable[[Any, Tensor], Tensor] = plain) -> Any:
    return Module(
        forward,
        **{"first": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "act": nn.ReLU(inplace=True)},
        block=nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()),
        last=nn.Linear(4, 2),
    )


def counting(self: Any, x: Tensor) -> Tensor:
    """Its state goes on from call to call."""
    self.calls = vars(self).get("calls", 0) + 1
    self.norm.eps = 1e-5 * self.calls
    return plain(self, x) * self.calls


def closed() -> Any:
    """A function refers to the model itself, so a copy would call its layers."""
    model = net(lambda self, x: self.last(self.inner(self.act(self.norm(self.first(x))))))
    model.inner = lambda x: model.block(x)
    return model


def locked() -> Any:
    """It cannot be copied."""
    model = net()
    model.lock = threading.Lock()
    return model


def oftener(self: Any, x: Tensor) -> Tensor:
    return self.last(self.block(plain(self, x).repeat(1, 2)))


def with_weights_of(a: Any, b: Any) -> Any:
    b.load_state_dict(a.state_dict())
    return b


def faulty(a: Any, make: Callable[[], Any] = net) -> Any:
    b = with_weights_of(a, make())
    with torch.no_grad():
        b.get_submodule("block.0").weight[0] *= 1.1
    return b


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int]] = {
    # A, B, and how many runs of their own the own errors need
    "one fault": (net, faulty, 0),
    "equal": (net, copy.deepcopy, 0),
    "a closure": (closed, lambda a: faulty(a, closed), 1),
    "not copied": (locked, lambda a: faulty(a, locked), 1),
    "more calls in B": (net, lambda a: with_weights_of(a, net(oftener)), 0),
    "other names": (net, lambda a: Module(lambda self, x: self.inner(x), inner=faulty(a)), 1),
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
        found = hookscope.diff(a, b, input=ROWS, floor="none", train=train)
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
    a = closed()
    with pytest.raises(RequestError, match="of A itself"):
        hookscope.diff(a, faulty(a, closed), input=ROWS, floor="float64")
    with caplog.at_level("INFO", "hookscope"):
        found = hookscope.diff(a, faulty(a, closed), input=ROWS, local=True)
    assert isinstance(found, LocalDiff) and not found.floor
    assert found.faults == hookscope.diff(a, faulty(a, closed), input=ROWS, floor="none").faults
    assert "floor: none" in caplog.text


def test_a_model_whose_state_goes_on_is_compared_in_one_state() -> None:
    a = net(counting)
    found = hookscope.diff(a, faulty(a, lambda: net(counting)), input=ROWS, floor="none")
    assert isinstance(found, LocalDiff)
    own = {error.key: error.own for error in found.errors if error.own}
    [first] = [error for error in found.errors if error.key == "block.0"]
    assert own == {"block.0": pytest.approx(first.accumulated), "block.0:2": own["block.0:2"]}
