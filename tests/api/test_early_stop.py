"""``capture --stop`` ends the run once every selected layer has returned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Step(nn.Module):
    """A layer that notes its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.name, self.calls = name, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.name)
        return self.linear(x).relu_()


class Net(nn.Module):
    """Three layers, of which the first runs twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls: list[str] = []
        for name in ("first", "second", "third"):
            self.add_module(name, Step(name, self.calls))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.first(self.second(self.first(x))))


class Stubborn(Net):
    """A model that goes on after any exception of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            try:
                x = layer(x)
            except Exception:
                self.calls.append("caught")
        return x


@pytest.mark.parametrize("kind", [Net, Stubborn])
def test_what_follows_the_last_selected_layer_is_not_run(kind: type[Net]) -> None:
    net = kind()
    whole = hookscope.capture(net, layers="second*", what=["input", "output"], input=X)
    net.calls.clear()
    shot = hookscope.capture(net, layers="second*", what=["input", "output"], input=X, stop=True)

    assert net.calls == ["first", "second"]
    assert list(shot) == list(whole)
    assert all(torch.equal(shot[key], tensor) for key, tensor in whole.items())
    assert shot.coverage.stopped_after == "second"
    assert shot.output is None
    assert whole.coverage.stopped_after == ""


def test_the_last_call_ends_the_run_and_the_file_says_so(tmp_path: Path) -> None:
    net = Net()
    shot = hookscope.capture(net, layers="first", input=X, stop=True)
    assert net.calls == ["first", "second", "first"]
    assert list(shot) == ["first/output", "first:2/output"]
    assert shot.coverage.not_run == ("third",)
    shot.save(tmp_path / "shot.safetensors")
    assert hookscope.load(tmp_path / "shot.safetensors").coverage == shot.coverage


class Reading(Net):
    """A model that reads values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() < 1e9 else -x)


def test_without_a_known_last_call_the_first_one_ends_the_run(tmp_path: Path) -> None:
    shot = hookscope.capture(Reading(), layers="first", input=X, stop=True)
    assert list(shot) == ["first/output"]
    assert not shot.coverage.calls_complete
    shot.save(tmp_path / "shot.safetensors")
    assert hookscope.load(tmp_path / "shot.safetensors").coverage == shot.coverage


def test_a_layer_that_never_runs_is_not_waited_for() -> None:
    net = Net()
    net.unused = Step("unused", net.calls)
    shot = hookscope.capture(net, layers=["second", "unused"], input=X, stop=True)
    assert net.calls == ["first", "second"]
    assert shot.coverage.stopped_after == "second"
    assert [layer.module for layer in shot.coverage.not_executed] == ["unused"]


def test_a_layer_that_may_run_later_lets_the_model_run_to_its_end() -> None:
    net = Reading()
    net.unused = Step("unused", net.calls)
    shot = hookscope.capture(net, layers=["second", "unused"], input=X, stop=True)
    assert net.calls == ["first", "second", "first", "third"]
    assert shot.coverage.stopped_after == ""
    assert [layer.module for layer in shot.coverage.not_executed] == ["unused"]
    assert shot.output is not None


def test_a_run_that_was_ended_leaves_the_model_as_it_was() -> None:
    net = Net().train()
    first = hookscope.capture(net, layers="second", input=X, stop=True)
    assert all(module.training for module in net.modules())
    assert not any(module._forward_hooks for module in net.modules())
    assert not any(module._forward_pre_hooks for module in net.modules())
    again = hookscope.capture(net, layers="second", input=X)
    assert torch.equal(first["second/output"], again["second/output"])


@pytest.mark.parametrize("convert", [torch.jit.script, lambda net: torch.jit.trace(net, X)])
def test_a_scripted_model_ends_too(tmp_path: Path, convert: Callable[[nn.Module], Any]) -> None:
    with pytest.warns((FutureWarning, DeprecationWarning), match="is deprecated"):
        scripted = convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    scripted.save(tmp_path / "net.pt")
    whole = hookscope.capture(str(tmp_path / "net.pt"), layers="0", input=X)
    shot = hookscope.capture(str(tmp_path / "net.pt"), layers="0", input=X, stop=True)
    assert shot.coverage.stopped_after == "0"
    assert torch.equal(shot["0/output"], whole["0/output"])


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("--verify", {"verify": True}),
        ("--ops", {"ops": True}),
        ("--attention", {"attention": True}),
        ("--generate", {"generate": 2}),
        ("--edit", {"edits": "first=zero"}),
        ("--hook", {"hooks": print}),
    ],
)
def test_what_needs_the_rest_of_the_run_is_refused(option: str, more: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"before the model returns, but {option} "):
        hookscope.capture(Net(), layers="first", input=X, stop=True, **more)


def test_the_command_and_its_file_say_where_the_run_ended(run) -> None:
    options = ["resnet18", "--layer", "layer1", "--shape", "1x3x32x32", "--stop"]
    ended = "Not run, because the run ended after layer1: layer2, layer3, layer4, avgpool, fc."
    done = run("capture", *options, "-o", "a.safetensors")
    assert done.rc == 0, done.stderr
    assert ended in done.stdout
    assert ended in run("show", "a.safetensors").stdout
    document = json.loads(run("capture", *options, "--no-output", "--json").stdout)
    assert document["coverage"]["stopped_after"] == "layer1"
    refused = run("capture", *options, "--verify")
    assert refused.rc == 2
    assert "--stop ends the run before the model returns" in refused.stderr


class Careless(Net):
    """Catches whatever its layer raises."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.first(x)
        except:  # noqa: E722
            x = self.first(x * 0)
        return x


def test_a_model_that_catches_the_stop_is_an_error() -> None:
    with pytest.raises(RequestError, match="catches the exception that ends the run after first"):
        hookscope.capture(Careless(), layers="first", input=X, stop=True)
