"""Modules and parameters that ``forward`` makes when it first runs are recorded with the others."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import hookscope
from tests.hooks.recordings import BOTH, recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Grows, Module, total


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
