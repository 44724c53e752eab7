"""What is not recorded is listed with its module, call, place and reason; the rest is recorded."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import hookscope
from hookscope.hooks.layers import select
from hookscope.hooks.recorder import Recorder
from hookscope.results.records import Absent
from hookscope.specs.tensor_key import OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from tests.hooks.recordings import reasons, recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Module, OwnFunction


class Closed:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_an_object_that_is_not_opened_is_told_for_each_call_and_place() -> None:
    part = Module(lambda self, x: Closed(x + 1))
    taking = Module(lambda self, closed: closed.x * 2)
    model = Module(lambda self, x: self.take(self.make(x)) + self.take(self.make(x)),
                   make=part, take=taking)  # fmt: skip
    capture = recorded(model, torch.ones(2), layers=["make", "take"], what="input,output")
    told = [(a.module, a.call, a.what, a.kind) for a in capture.absent]
    places = (("make", "output"), ("take", "input"))
    assert told == [(name, call, what, what) for call in (1, 2) for name, what in places]
    assert all("a Closed object" in a.reason for a in capture.absent)
    assert list(capture) == ["make/input.0", "take/output", "make:2/input.0", "take:2/output"]


@pytest.mark.parametrize("value", [None, 3, "text", (), [1, None]])
def test_an_output_without_a_tensor_is_told(value: Any) -> None:
    model = Module(lambda self, x: self.part(x), part=Module(lambda self, x: value))
    with hookscope.record(model, layers=["part"]) as capture:
        model(torch.ones(1)), model(torch.ones(1))
    told = [(a.module, a.call, a.what, a.kind) for a in capture.absent]
    assert told == [("part", call, "output", "output") for call in (1, 2)]


def test_an_input_without_a_tensor_is_nothing_to_tell() -> None:
    capture = recorded(Module(lambda self, n: torch.ones(n)), 2, what="input")
    assert capture.absent == () and list(capture) == []


@pytest.mark.parametrize(
    ("dtype", "reason"), [(torch.int64, "integer"), (torch.uint8, "integer"), (torch.bool, "bool")]
)
def test_whole_numbers_have_no_gradient(dtype: torch.dtype, reason: str) -> None:
    model, x = Module(lambda self, x: (x.to(dtype), x * 2)), torch.ones(2, requires_grad=True)
    capture = recorded(model, x, grads=True, loss=lambda output: output[1].sum())
    assert capture.absent == (Absent(".", "Module", 1, "output.0.grad", "output.grad", reason),)
    assert capture["./output.1.grad"].tolist() == [1, 1]


def test_what_does_not_require_grad_is_told_apart_from_what_runs_without_autograd() -> None:
    model = Module(lambda self, x: x * 2)
    with hookscope.record(model, grads=True) as capture:
        model(torch.ones(2))
        with torch.no_grad():
            model(torch.ones(2, requires_grad=True))
    first, second = capture.absent
    assert (first.call, first.what, second.call) == (1, "output.grad", 2)
    assert "requires grad" in first.reason and "without autograd" in second.reason


def test_a_frozen_parameter_is_told_and_those_after_it_are_recorded() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    for layers, keys in (
        (None, {"0/bias.grad", "1/bias.grad", "1/weight.grad"}),
        (["1"], {"1/bias.grad", "1/weight.grad"}),
    ):
        capture = recorded(model, torch.ones(1, 2), layers=layers or [], grads=True)
        assert {r.key for r in capture.records if r.kind == PARAM_GRAD} == keys
        frozen = Absent("0", "Linear", 1, "weight.grad", "param.grad", "frozen")
        assert capture.absent == (() if layers else (frozen,))


def test_a_parameter_on_the_meta_device_is_told_to_be_offloaded() -> None:
    model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 2))
    with hookscope.record(model, grads=True) as capture:
        model[1](torch.ones(1, 2)).sum().backward()
    assert "offloaded" in reasons(capture)["0/weight.grad"] == reasons(capture)["0/bias.grad"]


def test_a_function_that_returns_none_is_not_taken_for_a_loss_without_the_parameter() -> None:
    net = OwnFunction()
    net.unused = nn.Parameter(torch.ones(4))
    why = reasons(recorded(net, torch.ones(2, 4), grads=True))
    assert "None" in why["./weight.grad"] and why["./unused.grad"] == "outside the loss"
    capture = recorded(
        net, torch.ones(2, 4), grads=True, loss=lambda y: y.sum() + 3 * net.weight.sum()
    )
    assert capture["./weight.grad"].tolist() == [3.0] * 4


def test_a_parameter_bears_every_name_that_it_has() -> None:
    shared, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    head.weight = shared.weight
    model = nn.Sequential(OrderedDict(one=shared, two=shared, head=head, again=head))
    capture = recorded(model, torch.ones(1, 2), grads=True)
    [record] = [r for r in capture.records if r.kind == PARAM_GRAD]
    assert record.key == "one/weight.grad"
    assert record.aliases == ("two/weight", "head/weight", "again/weight")
    assert same_bits(capture[record.key], shared.weight.grad)
    norm = shared.weight.detach().norm()
    assert record.ratio == pytest.approx(float(shared.weight.grad.norm() / norm))


def test_a_tensor_that_stands_twice_is_told_for_each_call() -> None:
    model = Module(lambda self, x: self.part(x, x), part=Module(lambda self, a, b: a * b))
    x = torch.full((2,), 3.0, requires_grad=True)
    with hookscope.record(model, layers=["part"], what="input", grads=True) as capture:
        (model(x) + model(x)).sum().backward()
    told = [(a.module, a.call, a.what, a.kind) for a in capture.absent]
    assert told == [("part", call, "input.1.grad", "input.grad") for call in (1, 2)]
    assert all("input.0" in a.reason for a in capture.absent)
    assert capture["part/input.0.grad"].tolist() == [6, 6]


def test_a_module_whose_call_failed_is_told_for_that_call() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        if x.sum() > 5:
            raise ValueError("too much")
        return x * 2

    part = Module(forward)
    with hookscope.record(part, layers=["."]) as capture:
        part(torch.ones(2))
        with pytest.raises(ValueError, match="too much"):
            part(torch.full((2,), 9.0))
    [absent] = capture.absent
    assert (absent.call, absent.what, absent.kind) == (2, "output", "output")
    assert "raised" in absent.reason and list(capture) == ["./output"]


def test_gradients_that_the_model_takes_for_itself_are_not_those_of_the_loss() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.part(x)
        [slope] = torch.autograd.grad(y.square().sum() * 5, y, create_graph=True)
        return y + slope.detach() * 0

    model = Module(forward, part=nn.Linear(2, 2))
    x = torch.randn(3, 2)
    capture = recorded(model, x, grads=True)
    assert torch.equal(capture["part/output.grad"], torch.ones(3, 2))
    assert same_bits(capture["part/weight.grad"], model.part.weight.grad)
    assert [r.call for r in capture.records if r.kind == PARAM_GRAD] == [1, 1]


def test_a_pause_leaves_out_what_happens_in_it_and_ends_with_it() -> None:
    part = nn.Linear(2, 2)
    model, x = Module(lambda self, x: self.part(x), part=part), torch.randn(3, 2)
    recorder = Recorder(model, select(model, ["part"]), [OUTPUT, OUTPUT_GRAD, PARAM_GRAD])
    with recorder as capture:
        first = model(x)
        with recorder.paused():
            model(x)
            torch.autograd.grad(first.square().sum(), part.weight, retain_graph=True)
        with pytest.raises(KeyError), recorder.paused():
            raise KeyError
        first.sum().backward()
        model(x)
    assert [r.key for r in capture.records if r.kind == OUTPUT] == ["part/output", "part:2/output"]
    assert torch.equal(capture["part/output.grad"], torch.ones(3, 2))
    assert same_bits(capture["part/weight.grad"], part.weight.grad)


def test_nothing_is_recorded_after_the_block() -> None:
    model, x = nn.Linear(2, 2), torch.randn(3, 2)
    with hookscope.record(model, grads=True) as capture:
        y = model(x)
    y.sum().backward()
    model(x).sum().backward()
    assert list(capture) == ["./output"]
    assert {a.reason for a in capture.absent} == {"backward() did not run"}


@pytest.mark.parametrize("order", ["sparse, dense", "dense, sparse", "sparse, sparse"])
def test_gradients_of_several_passes_add_up_whatever_their_layout(order: str) -> None:
    places, table = torch.tensor([0, 2, 0]), torch.ones(3, 2, requires_grad=True)
    model = nn.Sequential(
        Module(lambda self, table: (F.embedding(places, table, sparse=True), table * 2))
    )
    with hookscope.record(model, layers=["0"], what="input", grads=True) as capture:
        sparse, dense = model(table)
        for name in order.split(", "):
            [(sparse * 5).sum(), dense.sum()][name == "dense"].backward(retain_graph=True)
    parts = {"sparse": torch.tensor([[10.0] * 2, [0.0] * 2, [5.0] * 2]), "dense": torch.tensor(2.0)}
    expected = sum(parts[name] for name in order.split(", "))
    for grad in (capture["0/input.0.grad"], table.grad):
        assert grad is not None and torch.equal(grad.to_dense(), expected * torch.ones(3, 2))


def test_an_input_made_in_inference_mode_gets_a_gradient() -> None:
    with torch.inference_mode():
        x = torch.randn(3, 2)
    model = nn.Linear(2, 2)
    for given in (x.clone(), x):
        capture = recorded(model, given, what="input", grads=True)
        assert torch.allclose(capture["./input.0.grad"], model.weight.sum(0).expand(3, 2))
    assert x.is_inference() and not x.requires_grad


@pytest.mark.parametrize("what", ["output", "input", "input,output"])
def test_work_in_place_that_no_other_tensor_shares_raises_no_doubt(caplog: Any, what: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2))
    x = torch.randn(3, 2)
    with caplog.at_level(logging.WARNING), hookscope.record(model, what=what, grads=True):
        model(x).sum().backward()
    assert caplog.records == []


def test_tensors_that_share_memory_and_stay_as_they_are_raise_no_doubt(caplog: Any) -> None:
    part = Module(lambda self, a, b: a + b)
    model = Module(lambda self, x: self.part(x[:1], x[1:]) * 2, part=part)
    x = torch.randn(2, 2, requires_grad=True)
    with caplog.at_level(logging.WARNING), hookscope.record(model, what="input", grads=True):
        model(x * 1).sum().backward()
    assert caplog.records == []


@pytest.mark.parametrize("kinds", [[OUTPUT], [OUTPUT_GRAD], [OUTPUT, OUTPUT_GRAD]])
def test_an_object_that_is_not_opened_is_told_once(kinds: list[str]) -> None:
    model = Module(lambda self, x: Closed(x))
    with Recorder(model, select(model), kinds) as capture:
        model(torch.ones(2, requires_grad=True))
    [absent] = capture.absent
    assert (absent.call, absent.what, absent.kind) == (1, "output", kinds[0])
    assert "a Closed object" in absent.reason


def test_the_input_that_is_used_before_and_returned_has_a_reason_for_its_share() -> None:
    model = Module(lambda self, x: (x * 3, self.same(x)), same=nn.Identity())
    own = torch.ones(2, requires_grad=True) * 1
    with hookscope.record(model, what=["input", "output"], grads=True) as capture:
        first, same = model(own)
        (first + same).sum().backward()
    assert "returns" in reasons(capture)["same/input.0.grad"]
    assert "same/input.0.grad" not in capture


def test_a_gradient_that_the_model_computes_itself_is_no_reason() -> None:
    """It arrives, within a later call, at a view that was changed; no backward pass follows."""

    def forward(self: Module, x: Tensor) -> Tensor:
        for earlier in used:
            torch.autograd.grad(earlier.sum(), x)
        view = self.flat(x * 2)
        used.append(view * 3)
        view.mul_(5)
        return view

    used: list[Tensor] = []
    model, x = Module(forward, flat=nn.Flatten()), torch.ones(1, 2, 1, requires_grad=True)
    with hookscope.record(model, layers="flat", grads=True) as capture:
        model(x), model(x)
    assert [absent.call for absent in capture.absent] == [1, 2]
    assert {absent.reason for absent in capture.absent} == {"backward() did not run"}


class Packed(Tensor):
    """A tensor that is made of another one, and whose gradient is a plain tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Packed:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain, named = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        result = function(*plain, **named)
        packs = function is torch.ops.aten.detach.default and isinstance(args[0], cls)
        return cls(result) if packs else result


def test_a_gradient_of_a_parameter_that_cannot_be_read_has_a_reason() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight = nn.Parameter(Packed(torch.ones(2, 2)))
    capture = recorded(model, torch.ones(1, 2), grads=True)
    assert type(model.weight.grad) is Tensor
    [absent] = capture.absent
    assert (absent.what, absent.kind) == ("weight.grad", PARAM_GRAD) and "Packed" in absent.reason
    assert list(capture) == ["./output", "./output.grad"]
