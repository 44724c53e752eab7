"""Recording where a program brings about limits, depth, or modules that are added meanwhile."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed
from hookscope.hooks.layers import select
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink
from tests.hooks.recordings import BOTH, hooks_left, recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Grows, Module, total


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_recording_made_while_an_exception_is_handled_is_whole() -> None:
    model, x = net(), torch.randn(2, 3)
    usual = recorded(model, x, what="input,output", grads=True)
    try:
        raise KeyError("something else went wrong before")
    except KeyError:
        capture = recorded(model, x, what="input,output", grads=True)
    assert list(capture) == list(usual)
    assert all(same_bits(capture[key], usual[key]) for key in usual)
    assert capture.absent == usual.absent


def test_a_layer_that_is_run_in_an_except_block_of_the_model_is_recorded() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        try:
            return self.first(x.reshape(-1, 5))
        except RuntimeError:
            return self.second(x)

    model = Module(forward, first=nn.Linear(5, 2), second=nn.Linear(3, 2))
    x = torch.ones(2, 3)
    capture = recorded(model, x)
    assert list(capture) == ["second/output", "./output"]
    assert same_bits(capture["second/output"], model.second(x))


@pytest.mark.parametrize("what", ["output", "input,output"])
def test_a_limit_of_exactly_what_is_recorded_is_enough(what: str) -> None:
    model, x = net(), torch.randn(2, 3)
    size = hookscope.capture(model, input=x, what=what).nbytes
    assert hookscope.capture(model, input=x, what=what, max_bytes=size).nbytes == size
    with pytest.raises(CheckFailed, match=f"{size - 1}"):
        hookscope.capture(model, input=x, what=what, max_bytes=size - 1)


def test_a_limit_that_an_input_passes_ends_its_call() -> None:
    model, x = net(), torch.randn(2, 3)
    recorder = Recorder(model, select(model), ["input"], sink=CaptureSink(1))
    with pytest.raises(CheckFailed, match=r"Stopped at \(model\)"), recorder:
        model(x)
    assert recorder.gradients.watcher.open_calls == 0
    assert hooks_left(model) == 0


def test_gradients_up_to_exactly_the_limit_are_recorded() -> None:
    model, x = net(), torch.randn(2, 3)
    size = hookscope.grads(model, input=x, loss="sum").nbytes
    assert hookscope.grads(model, input=x, loss="sum", max_bytes=size).nbytes == size
    with pytest.raises(CheckFailed):
        hookscope.grads(model, input=x, loss="sum", max_bytes=size - 1)


class Overriding(nn.Linear):
    """Has a method ``parameters`` without the argument of PyTorch's."""

    def parameters(self) -> Iterator[nn.Parameter]:  # type: ignore[override]
        return iter((self.weight, self.bias))


def test_a_module_may_override_parameters() -> None:
    model, x = nn.Sequential(Overriding(3, 4), Overriding(4, 2)), torch.randn(2, 3)
    assert hookscope.tree(model).modules[1].own_parameters == 16
    assert len(hookscope.capture(model, input=x)) == 3
    keys = {"0/weight.grad", "0/bias.grad", "1/weight.grad", "1/bias.grad"}
    assert keys <= set(hookscope.grads(model, input=x, loss="sum"))
    assert hookscope.check(model, input=x) is not None


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_gradient_that_is_a_conjugate_view_is_that_of_autograd(dtype: torch.dtype) -> None:
    x = torch.randn(4, dtype=dtype, requires_grad=True)
    model = Module(lambda self, x: (x * x.conj()).real.sum())
    with hookscope.record(model, what="input", grads=True) as capture:
        model(x).backward()
    assert torch.equal(capture["./input.0.grad"].resolve_conj(), x.grad.resolve_conj())


@pytest.mark.parametrize("run", [hookscope.capture, hookscope.grads, hookscope.tree])
def test_modules_that_are_nested_deeply_run_with_hooks_as_without(run: Callable[..., Any]) -> None:
    net: nn.Module = nn.Linear(3, 3)
    for _ in range(240):  # 3 calls each, 4 with hooks; Python allows 1000
        net = Module(lambda self, x: self.inner(x), inner=net)
    limit = sys.getrecursionlimit()
    options: dict[str, Any] = {"shapes": True, "shape": (1, 3)}
    if run is not hookscope.tree:
        options = {"input": torch.ones(1, 3)}
    if run is hookscope.grads:
        options["loss"] = "sum"
    run(net, **options)
    assert sys.getrecursionlimit() == limit


def test_a_recursion_limit_that_the_model_sets_stays() -> None:
    limit = sys.getrecursionlimit()

    def forward(self: Any, x: Tensor) -> Tensor:
        sys.setrecursionlimit(limit + 77)
        return x

    net = Module(forward)
    try:
        with hookscope.record(net):
            net(torch.ones(1))
        assert sys.getrecursionlimit() == limit + 77
    finally:
        sys.setrecursionlimit(limit)


def network() -> Module:
    torch.manual_seed(0)
    return Module(lambda self, x: self.body(x), body=Grows())


ADDED = ("body.added", "body.added.0", "body.added.1")


def test_values_and_gradients_of_added_modules_are_recorded() -> None:
    net, x = network(), torch.randn(4, 4)
    capture = recorded(net, x, loss=total, what=BOTH, grads=True)
    again = net(x)
    named = dict(net.named_parameters())
    expected = torch.autograd.grad(again.square().sum(), list(named.values()))
    for name, grad in zip(named, expected, strict=True):
        layer, _, own = name.rpartition(".")
        assert same_bits(capture[f"{layer}/{own}.grad"], grad)
    assert {f"{name}/output" for name in ADDED} <= set(capture)
    assert {f"{name}/input.0.grad" for name in ADDED} <= set(capture)
    assert {executed.module for executed in capture.coverage.executed} >= set(ADDED)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())


def test_a_module_added_to_a_layer_that_was_not_chosen_is_not_recorded() -> None:
    net = network()
    capture = recorded(net, torch.randn(4, 4), layers="body.first", grads=True)
    assert {record.module for record in capture.records} == {"body.first"}


def test_a_module_added_to_the_only_chosen_layer_is_recorded() -> None:
    net, x = network(), torch.randn(4, 4)
    capture = recorded(net, x, layers="body")
    assert list(capture) == [*(f"{name}/output" for name in (*ADDED[1:], ADDED[0])), "body/output"]


def test_verbs_record_added_modules_and_name_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shot = hookscope.capture(network(), input=torch.ones(1, 4))
    assert "body.added.0/output" in shot
    assert "body.added.0 (Linear)" in caplog.text
    found = hookscope.grads(network(), input=torch.ones(1, 4), loss="sum")
    assert {"body.added.0/weight.grad", "body/scale.grad"} <= set(found)


def test_what_is_added_elsewhere_meanwhile_is_left_alone() -> None:
    net, other = network(), nn.Sequential()
    with hookscope.record(net, grads=True) as capture:
        other.add_module("more", nn.Linear(4, 4))
        net.add_module("later", nn.Linear(4, 4))  # by the caller, not by forward
        net(torch.randn(1, 4)).sum().backward()
        other(torch.randn(1, 4))
    assert not any("later" in key or "more" in key for key in capture)
    nn.Sequential().add_module("x", nn.Identity())
    assert not nn.modules.module._global_module_registration_hooks
    assert not nn.modules.module._global_parameter_registration_hooks


def test_the_tree_with_shapes_has_added_modules() -> None:
    tree = hookscope.tree(network(), shapes=True, shape=[4, 4])
    nodes = {node.name: node for node in tree.modules}
    assert set(ADDED) <= set(nodes)
    run = nodes["body.added.0"].run
    assert run is not None and run.calls == 1 and run.outputs == ("4x2",)


def test_lazy_modules_are_recorded_at_their_first_run() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.LazyConv1d(2, 1), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(2, 4, 5)
    capture = recorded(net, x, loss=total, what=BOTH, grads=True)
    assert not capture.absent
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    keys = ["0/weight.grad", "0/bias.grad", "2/weight.grad", "2/bias.grad"]
    for key, grad in zip(keys, expected, strict=True):
        assert same_bits(capture[key], grad), key
    assert "2/input.0.grad" in capture
