"""A copy or a pickle of a model that is made while it is recorded is one of the model alone."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.recordings import recorded
from tests.hooks.test_values import Module, hooks_left
from tests.oracle.by_hand import same_bits

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


def saved(net: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "pickle in Python": lambda net: pickle.loads(pickle._dumps(net)),  # type: ignore[attr-defined]
    "save": saved,
}


def entries(net: nn.Module) -> int:
    """All entries of a model's dicts of hooks, those that say how a hook is called included."""
    return sum(
        len(members)
        for module in net.modules()
        for name, members in vars(module).items()
        if "_hooks" in name and isinstance(members, dict)
    )


def inside(net: nn.Module, act: Callable[[], Any], subscriber: str) -> None:
    """Do something within a recording, or in the middle of a run."""
    if subscriber == "record":
        with hookscope.record(net, grads=True, ops=True, what=["output", "input"]):
            act()
        return
    done = []

    def once(module: nn.Module, args: Any, output: Tensor) -> None:
        if not done:
            done.append(act())

    runs: dict[str, Callable[[], Any]] = {
        "a hook of the user's": lambda: hookscope.capture(net, input=X, hooks=once, layers="1"),
        "an edit": lambda: hookscope.grads(
            net, input=X, hooks=once, layers="1", edits="0=zero", grad_edits="1=zero", loss="sum"
        ),
        "a trace": lambda: hookscope.trace(net, input=X, loss=lambda out: [act(), out.sum()][1]),
        "a check": lambda: hookscope.check(net, input=X, loss=lambda out: [act(), out.sum()][1]),
    }
    runs[subscriber]()


SUBSCRIBERS = ("record", "a hook of the user's", "an edit", "a trace", "a check")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("subscriber", SUBSCRIBERS)
def test_a_copy_has_none_of_our_hooks_and_works(way: str, subscriber: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    expected, copies = net(X), []
    inside(net, lambda: copies.append(WAYS[way](net)), subscriber)
    for made in copies:
        assert entries(made) == 0
        assert same_bits(made(X).detach(), expected.detach())
        handle = made[0].register_forward_hook(lambda module, args, output: output * 0)
        assert not same_bits(made(X), expected)  # a new hook does not take the place of an old one
        handle.remove()
        capture = recorded(made, X)
        assert same_bits(capture["./output"], expected.detach())
    assert copies and entries(net) == 0


def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def keyword(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return (args[0] + 1,), kwargs


@pytest.mark.parametrize("way", WAYS)
def test_hooks_that_the_model_had_are_in_its_copy(way: str) -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    net[0].register_forward_hook(double, always_call=True)
    with hookscope.record(net, what=["input", "output"]):
        net[0].register_forward_pre_hook(keyword, with_kwargs=True)
        made = WAYS[way](net)
    assert entries(made) == entries(net) == 4
    assert same_bits(made(X), net(X))


def test_a_pickle_made_in_a_block_names_nothing_of_hookscope() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    plain = pickle.dumps(net)
    with hookscope.record(net, grads=True):
        net(X).sum().backward()
        net.zero_grad()
        assert b"hookscope" not in pickle.dumps(net)
    assert len(pickle.dumps(net)) == len(plain)


def test_a_copy_made_in_a_block_is_not_recorded_and_can_be_on_its_own() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    with hookscope.record(net) as capture:
        made = copy.deepcopy(net)
        made(X)
        with hookscope.record(made) as inner:
            made(X)
            net(X)
    assert list(capture) == list(inner) == ["0/output", "./output"]


def test_a_wrapped_module_made_in_a_block_keeps_no_hook() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    with hookscope.record(net):
        net[0] = hookscope.wrap(net[0], after=double)
    assert hooks_left(net) == 1  # that which shows it to the fast paths of transformers


def test_a_graph_module_copied_in_a_block_has_none_of_our_hooks() -> None:
    net = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 2)))
    with hookscope.record(net):
        made = copy.deepcopy(net)
    assert entries(made) == 0 and same_bits(made(X), net(X))


def test_two_recordings_of_one_module_end_in_any_order() -> None:
    net = nn.Linear(4, 2)
    first, second = hookscope.record(net), hookscope.record(net)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert entries(copy.deepcopy(net)) == 0
    second.__exit__(None, None, None)
    assert not vars(net._forward_hooks) and entries(net) == 0


def test_a_model_that_copies_itself_as_it_runs_can_be_captured() -> None:
    copies = []

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        copies.append(copy.deepcopy(self.inner))
        return self.inner(x)

    shot = hookscope.capture(Module(forward, inner=nn.Linear(4, 2)), input=X)
    assert list(shot) == ["inner/output", "./output"]
    assert entries(copies[0]) == 0


class Counted(OrderedDict[str, int]):
    """A class of a program, which PyTorch's dicts of hooks are not."""


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
def test_other_ordered_dicts_are_copied_as_ever(way: str) -> None:
    numbers = OrderedDict([(2, "b"), (1, True)])
    numbers.note = ["kept"]  # type: ignore[attr-defined]
    values: list[Any] = [numbers, Counted(a=1), nn.Linear(2, 2).state_dict()]
    ways: dict[str, Callable[[Any], Any]] = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda value: pickle.dumps(value),
    }
    before = [ways[way](value) for value in values]
    with hookscope.record(nn.Linear(2, 2)):
        after = [ways[way](value) for value in values]
    for one, other in zip(before, after, strict=True):
        assert type(one) is type(other) and repr(one) == repr(other)
        assert getattr(one, "__dict__", None) == getattr(other, "__dict__", None)
    assert OrderedDict not in copyreg.dispatch_table


def test_a_reducer_that_a_program_has_set_is_used_and_left() -> None:
    made = []

    def reduce(value: OrderedDict[Any, Any]) -> Any:
        made.append(len(value))
        return value.__reduce__()

    copyreg.pickle(OrderedDict, reduce)
    try:
        net = nn.Linear(4, 2)
        with hookscope.record(net):
            assert entries(copy.deepcopy(net)) == 0
        assert made and copyreg.dispatch_table[OrderedDict] is reduce
    finally:
        del copyreg.dispatch_table[OrderedDict]
