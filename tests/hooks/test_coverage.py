"""Which layers ran, how often, and the cause named where one did not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.test_values import Module


class Tree(nn.Module):
    """Children by name, and a function in the place of ``forward``."""

    def __init__(self, run: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def causes(model: nn.Module, *inputs: Tensor) -> dict[str, str]:
    with hookscope.record(model) as capture:
        model(*inputs)
    return {
        not_executed.module: not_executed.reason for not_executed in capture.coverage.not_executed
    }


X = torch.ones(2, 4)
CONTAINER = "a container: its parent calls its children, never the container itself"
UNEXPLAINED = "a branch not taken in {} mode, or its parent calls .forward() or uses its weights"


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
    found = causes(Tree(lambda self, x: x, part=container()), X)
    assert found["part"] == CONTAINER
    # What is in it may have been left out for its own reason: the container explains nothing.
    assert all(reason.startswith(UNEXPLAINED.format("train")) for name, reason in found.items()
               if name != "part")  # fmt: skip


def test_a_sequential_whose_parts_were_run_one_by_one_is_told_from_one_that_never_ran() -> None:
    steps, spare, empty = (nn.Sequential(nn.Tanh(), nn.ReLU()), nn.Sequential(nn.Tanh()),
                           nn.Sequential())  # fmt: skip
    model = Tree(lambda self, x: self.steps[0](x), steps=steps, spare=spare, empty=empty)
    found = causes(model.eval(), X)
    assert found["steps"] == "a container: its parent calls its children one by one"
    assert found["empty"] == "an empty container"
    assert found["spare"].startswith(UNEXPLAINED.format("eval"))
    assert found["spare.0"] == "it belongs to spare, which never ran"
    assert found["steps.1"] == "it belongs to steps, which never ran"


def test_the_outermost_module_that_never_ran_is_named() -> None:
    inner = nn.Sequential(OrderedDict(deep=nn.Sequential(OrderedDict(last=nn.Tanh()))))
    model = Tree(lambda self, x: x, block=Tree(lambda self, x: x, inner=inner))
    found = causes(model, X)
    assert found["block.inner.deep.last"] == "it belongs to block, which never ran"
    assert found["block.inner"] == "it belongs to block, which never ran"
    model = Tree(lambda self, x: self.block(x), block=Tree(lambda self, x: x, inner=inner))
    found = causes(model, X)
    assert found["block.inner.deep.last"] == "it belongs to block.inner, which never ran"


def test_what_attention_hands_to_a_kernel_is_named() -> None:
    attention = nn.MultiheadAttention(4, 2)
    found = causes(Tree(lambda self, x: self.part(x, x, x)[0], part=attention), X)
    assert found == {
        "part.out_proj": "attention passes its weights to a fused kernel instead of calling it"
    }


def test_the_fast_path_of_an_encoder_layer_is_named_in_eval_mode_alone() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    layer.add_module("extra", nn.Tanh())
    x = torch.ones(1, 3, 4)
    fast = "the encoder layer used its fused fast path"
    assert causes(layer.eval(), x)["extra"] == fast
    assert causes(layer.train(), x)["extra"].startswith(UNEXPLAINED.format("train"))


def test_a_module_without_forward_is_named() -> None:
    found = causes(Tree(lambda self, x: x, part=Module.__mro__[1]()), X)
    assert (
        found["part"]
        == "it has no forward: it only contains other modules, or tracing removed its code"
    )


@pytest.mark.parametrize("train", [True, False])
def test_an_unexplained_silence_names_the_mode(train: bool) -> None:
    model = Tree(lambda self, x: x @ self.used.weight.T, used=nn.Linear(4, 4)).train(train)
    found = causes(model, X)
    mode = "train" if train else "eval"
    assert found["used"] == f"{UNEXPLAINED.format(mode)} directly"


def test_layers_are_listed_in_the_order_of_their_first_call_with_their_calls() -> None:
    model = Tree(
        lambda self, x: self.a(self.b(self.a(self.c(x)))), a=nn.ReLU(), b=nn.Tanh(), c=nn.ELU()
    )
    with hookscope.record(model, layers=["a", "b", "c"]) as capture:
        model(X)
    coverage = capture.coverage
    assert [(x.module, x.type, x.calls) for x in coverage.executed] == [
        ("c", "ELU", 1),
        ("a", "ReLU", 2),
        ("b", "Tanh", 1),
    ]
    assert coverage.matched == 3 and coverage.not_executed == ()


def test_silent_layers_keep_the_order_of_the_model_and_count_as_matched() -> None:
    model = Tree(lambda self, x: self.b(x), a=nn.ReLU(), b=nn.Tanh(), c=nn.ELU())
    with hookscope.record(model, layers=["c", "a", "b"]) as capture:
        model(X)
    assert [(x.module, x.type) for x in capture.coverage.not_executed] == [
        ("a", "ReLU"),
        ("c", "ELU"),
    ]
    assert capture.coverage.matched == 3


def test_after_an_error_what_did_not_run_is_not_explained_by_the_structure() -> None:
    def fail(self: Module, x: Tensor) -> Tensor:
        raise ValueError("stop")

    model = nn.Sequential(nn.Tanh(), Module(fail), nn.ReLU())
    with pytest.raises(ValueError, match="stop"), hookscope.record(model) as capture:
        model(X)
    assert [(x.module, x.calls) for x in capture.coverage.executed] == [
        (".", 1),
        ("0", 1),
        ("1", 1),
    ]
    [not_executed] = capture.coverage.not_executed
    assert (not_executed.module, not_executed.reason) == ("2", "the run ended before it")
