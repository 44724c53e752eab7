"""Which layers ran, how often, and the cause named where one did not."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.recordings import recorded
from tests.zoo import Fails, Module


def causes(model: nn.Module, *inputs: Tensor) -> dict[str, str]:
    return {x.module: x.reason for x in recorded(model, *inputs).coverage.not_executed}


X = torch.ones(2, 4)
UNEXPLAINED = "a branch .* in {} mode"


@pytest.mark.parametrize(
    "container",
    [
        lambda: nn.ModuleList([nn.Tanh()]),
        lambda: nn.ModuleDict({"0": nn.Tanh()}),
        lambda: nn.ParameterList([nn.Parameter(torch.ones(1))]),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(1))}),
        lambda: type("Own", (nn.ModuleList,), {})([nn.Tanh()]),
    ],
)
def test_containers_without_forward_are_named_as_such(container: Callable[[], Any]) -> None:
    found = causes(Module(lambda self, x: x, part=container()), X)
    assert "container" in found["part"] and "never" in found["part"]
    # What is in it may have been left out for its own reason: the container explains nothing.
    assert all(re.match(UNEXPLAINED.format("train"), reason) for name, reason in found.items()
               if name != "part")  # fmt: skip


def test_a_sequential_whose_parts_were_run_one_by_one_is_told_from_one_that_never_ran() -> None:
    steps, spare, empty = (nn.Sequential(nn.Tanh(), nn.ReLU()), nn.Sequential(nn.Tanh()),
                           nn.Sequential())  # fmt: skip
    model = Module(lambda self, x: self.steps[0](x), steps=steps, spare=spare, empty=empty)
    found = causes(model.eval(), X)
    assert found["steps"].startswith("a container") and "one by one" in found["steps"]
    assert found["empty"] == "an empty container"
    assert re.match(UNEXPLAINED.format("eval"), found["spare"])
    assert "spare," in found["spare.0"] and "steps," in found["steps.1"]


def test_the_outermost_module_that_never_ran_is_named() -> None:
    inner = nn.Sequential(OrderedDict(deep=nn.Sequential(OrderedDict(last=nn.Tanh()))))
    for run, outermost in (
        (lambda self, x: x, "block,"),
        (lambda self, x: self.block(x), "inner,"),
    ):
        found = causes(Module(run, block=Module(inner=inner)), X)
        assert outermost in found["block.inner.deep.last"]


def test_what_attention_hands_to_a_kernel_is_named() -> None:
    attention = nn.MultiheadAttention(4, 2)
    found = causes(Module(lambda self, x: self.part(x, x, x)[0], part=attention), X)
    assert list(found) == ["part.out_proj"] and "kernel" in found["part.out_proj"]


def test_the_fast_path_of_an_encoder_layer_is_named_in_eval_mode_alone() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    layer.add_module("extra", nn.Tanh())
    x = torch.ones(1, 3, 4)
    assert "fast path" in causes(layer.eval(), x)["extra"]
    assert re.match(UNEXPLAINED.format("train"), causes(layer.train(), x)["extra"])


def test_a_module_without_forward_is_named() -> None:
    assert "no forward" in causes(Module(part=nn.Module()), X)["part"]


@pytest.mark.parametrize("train", [True, False])
def test_an_unexplained_silence_names_the_mode(train: bool) -> None:
    model = Module(lambda self, x: x @ self.used.weight.T, used=nn.Linear(4, 4)).train(train)
    found = causes(model, X)
    assert re.match(UNEXPLAINED.format("train" if train else "eval"), found["used"])


def test_layers_are_listed_in_the_order_of_their_first_call_with_their_calls() -> None:
    model = Module(
        lambda self, x: self.a(self.b(self.a(self.c(x)))),
        **{"a": nn.ReLU(), "b": nn.Tanh(), "c": nn.ELU(), "e": nn.GELU(), "d": nn.SiLU()},
    )
    coverage = recorded(model, X, layers=["a", "b", "d", "c", "e"]).coverage
    executed = [(x.module, x.type, x.calls) for x in coverage.executed]
    assert executed == [("c", "ELU", 1), ("a", "ReLU", 2), ("b", "Tanh", 1)]
    silent = [(x.module, x.type) for x in coverage.not_executed]  # in the order of the model
    assert silent == [("e", "GELU"), ("d", "SiLU")] and coverage.matched == 5


def test_after_an_error_what_did_not_run_is_not_explained_by_the_structure() -> None:
    model = Fails(ValueError("stop"))
    with pytest.raises(ValueError, match="stop"), hookscope.record(model) as capture:
        model(X)
    calls = {x.module: x.calls for x in capture.coverage.executed}
    assert calls == {".": 1, "first": 1, "bad": 1}
    [silent] = capture.coverage.not_executed
    assert silent.module == "last" and "ended before" in silent.reason
