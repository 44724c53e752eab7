"""Gradients are those of autograd: at outputs, at a module's own input, and at parameters."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.recorder import Recorder
from hookscope.select import select
from tests.hooks.test_values import Module
from tests.oracle.by_hand import same_bits


def reasons(capture: hookscope.Capture) -> dict[str, str]:
    return {f"{a.module}/{a.what}": a.reason for a in capture.absent}


def test_input_gradient_is_the_modules_own_share_and_not_the_total() -> None:
    net = Module(lambda self, x: self.branch(x) + 5 * x, branch=nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.branch.weight, 3.0)
    with hookscope.record(net, what=["input", "output"], grads=True) as capture:
        net(torch.tensor([[2.0]])).sum().backward()
    assert capture["branch/input.0.grad"].item() == 3
    assert capture["./input.0.grad"].item() == 8


def test_output_gradient_of_a_module_that_returns_its_input_is_its_own() -> None:
    net = Module(lambda self, x: self.same(x) * 2 + x * 7, same=nn.Identity())
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, requires_grad=True)).sum().backward()
    assert capture["same/output.grad"].item() == 2


def test_output_gradient_is_at_the_value_before_an_in_place_change() -> None:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(inplace=True))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, 1)).sum().backward()
    assert capture["0/output.grad"].tolist() == [[1, 0]]
    assert capture["1/output.grad"].tolist() == [[1, 1]]


def test_each_call_of_a_module_has_its_own_gradient() -> None:
    net = Module(lambda self, x: self.step(self.step(x)), step=nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.step.weight, 3.0)
    with hookscope.record(net, layers=["step"], what=["output"], grads=True) as capture:
        net(torch.ones(1, 1)).sum().backward()
    assert capture["step:2/output.grad"].item() == 1
    assert capture["step/output.grad"].item() == 3
    assert capture["step/weight.grad"].item() == 6


def test_gradients_stand_in_the_order_in_which_they_arrived() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    with hookscope.record(net, layers=["0", "1", "2"], grads=True) as capture:
        net(torch.ones(1, 2)).sum().backward()
    arrived = [r.module for r in capture.records if r.kind == "output.grad"]
    assert arrived == ["2", "1", "0"]


def test_what_has_no_gradient_gets_a_word_and_never_a_zero() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        self.aside(x)
        return self.used(x) + self.frozen(x) + self.ints(x)

    net = Module(
        forward,
        used=nn.Linear(2, 2),
        aside=nn.Linear(2, 2),
        frozen=nn.Linear(2, 2).requires_grad_(False),
        ints=Module(lambda self, x: x.long()),
        idle=nn.Linear(2, 2),
    )
    with hookscope.record(net, what=["output", "input"], grads=True) as capture:
        net(torch.ones(1, 2)).sum().backward()
    told = reasons(capture)
    assert told["aside/output.grad"] == told["aside/weight.grad"] == "outside the loss"
    assert told["frozen/weight.grad"] == "frozen"
    assert told["ints/output.grad"] == "integer"
    assert told["idle/weight.grad"] == "never ran"
    assert "frozen/output.grad" in capture  # the input requires grad, so this one exists


def test_without_a_backward_pass_every_gradient_says_so() -> None:
    net = nn.Linear(2, 1)
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, 2))
    assert set(reasons(capture).values()) == {"backward() did not run"}


def test_under_no_grad_the_reason_is_autograd_being_off() -> None:
    net = nn.Linear(2, 1)
    with torch.no_grad(), hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, 2))
    assert reasons(capture)["./output.grad"] == "computed without autograd"


def test_a_second_backward_through_one_graph_adds_up_and_parameters_count_passes() -> None:
    net = nn.Linear(1, 1, bias=False)
    with hookscope.record(net, grads=True) as capture:
        y = net(torch.full((1, 1), 4.0))
        y.sum().backward(retain_graph=True)
        (2 * y).sum().backward()
    assert capture["./output.grad"].item() == 3
    assert capture["./weight.grad"].item() == 4
    assert capture[".:2/weight.grad"].item() == 8
    assert net.weight.grad is not None and net.weight.grad.item() == 12


def test_a_loop_of_training_steps_keeps_every_pass() -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    expected = []
    with hookscope.record(net, grads=True) as capture:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 3)).square().mean().backward()
            assert net.weight.grad is not None
            expected.append(net.weight.grad.clone())
            optimizer.step()
    keys = ["./weight.grad", ".:2/weight.grad", ".:3/weight.grad"]
    assert all(same_bits(capture[key], grad) for key, grad in zip(keys, expected, strict=True))


def test_tied_parameters_have_one_gradient_under_the_first_name() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, 2)).sum().backward()
    found = [r for r in capture.records if r.kind == "param.grad"]
    assert [(r.key, r.aliases) for r in found] == [("0/weight.grad", ("1/weight",))]
    assert found[0].ratio == pytest.approx(
        (net[0].weight.grad.norm() / net[0].weight.norm()).item()  # type: ignore[union-attr]
    )


def test_the_effect_of_an_in_place_module_whose_result_is_ignored_is_kept() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = x * 2
        self.act(y)  # works in place; what it returns is not used
        return y

    net = Module(forward, act=nn.ReLU(inplace=True))
    x = torch.tensor([-1.0, 3.0])
    with hookscope.record(net, what=["input", "output"], grads=True) as capture:
        y = net(x)
        y.sum().backward()
    assert y.tolist() == [0, 6]
    assert capture["./input.0.grad"].tolist() == [0, 2]
    assert capture["act/input.0.grad"].tolist() == [0, 1]


def test_a_result_changed_in_place_behind_an_identity_is_doubted_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = x * 1
        self.same(y).add_(10)  # in the bare model this changes y too
        return y

    net = Module(forward, same=nn.Identity())
    with hookscope.record(net, grads=True):
        hooked = net(torch.zeros(1, requires_grad=True))
    assert "same: a tensor was changed in place" in caplog.text
    assert net(torch.zeros(1)).item() == 10 and hooked.item() == 0


def test_grads_refuses_what_hooks_would_change_rather_than_return_it() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        self.same(y).add_(10)
        return y

    net = Module(forward, lin=nn.Linear(2, 2), same=nn.Identity())
    with pytest.raises(hookscope.HookscopeError, match="without hooks gave another result"):
        hookscope.grads(net, input=torch.ones(1, 2), loss="sum")
    found = hookscope.grads(net, input=torch.ones(1, 2), loss="sum", layers=["lin"])
    assert found["lin/output.grad"].tolist() == [[1, 1]]


def test_recomputation_by_checkpointing_is_no_further_call() -> None:
    body = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    net = Module(lambda self, x: checkpoint(self.body, x, use_reentrant=False), body=body)
    x = torch.randn(1, 2, requires_grad=True)
    expected = torch.autograd.grad(body(x).sum(), list(body.parameters()))
    with hookscope.record(net, grads=True) as capture:
        net(x).sum().backward()
    assert [fired.calls for fired in capture.coverage.fired] == [1, 1, 1, 1]
    assert same_bits(capture["body.0/weight.grad"], expected[0])
    assert "body.0/output.grad" in capture


def test_an_expanded_gradient_is_kept_as_plain_values() -> None:
    net = nn.Identity()
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(3, 4, requires_grad=True)).sum().backward()
    assert capture["./output.grad"].is_contiguous()
    assert capture["./output.grad"].sum() == 12


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_gradients_in_other_dtypes(dtype: torch.dtype) -> None:
    net = nn.Linear(3, 2).to(dtype)
    x = torch.randn(4, 3, dtype=dtype)
    bare: Any = net(x).abs().sum()
    expected = torch.autograd.grad(bare, list(net.parameters()))
    with hookscope.record(net, grads=True) as capture:
        net(x).abs().sum().backward()
    assert same_bits(capture["./weight.grad"], expected[0])


def test_gradients_at_every_kind_of_output_container() -> None:
    def inner(self: Module, x: Tensor) -> Any:
        return {"a": (x * 2, None), "b": [x * 3, 7]}

    def forward(self: Module, x: Tensor) -> Tensor:
        out = self.inner(x)
        return out["a"][0] + 10 * out["b"][0]

    net = Module(forward, inner=Module(inner))
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(1, requires_grad=True)).sum().backward()
    assert capture["inner/output.a.0.grad"].item() == 1
    assert capture["inner/output.b.0.grad"].item() == 10


def test_the_models_input_gradient_can_be_had_whatever_layers_are_chosen() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).requires_grad_(False)
    x = torch.randn(1, 2)
    with Recorder(net, select(net, ["1"]), ["output.grad"], model_input=True) as capture:
        net(x).sum().backward()
    assert set(capture) == {"1/output.grad", "./input.0.grad"}
    assert torch.allclose(capture["./input.0.grad"], net[1].weight @ net[0].weight)
    assert capture.coverage.matched == 1


def test_self_attention_still_sees_that_its_three_inputs_are_one() -> None:
    net = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(1, 3, 4, requires_grad=True)
    bare, _ = net(x, x, x)
    (expected,) = torch.autograd.grad(bare.sum(), x)
    with hookscope.record(net, what=["input", "output"], grads=True) as capture:
        hooked, _ = net(x, x, x)
        hooked.sum().backward()
    assert same_bits(bare, hooked)
    assert same_bits(capture["./input.0.grad"], expected)
    told = reasons(capture)
    assert told["./input.1.grad"] == told["./input.2.grad"] == "the same tensor as input.0"


def keep_and_change_later() -> nn.Module:
    class Keeps(nn.Module):
        last: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return self.last

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.k(x)
        self.k.last.add_(100)
        return y * 1

    return Module(forward, k=Keeps())


def outputs_that_share_memory() -> nn.Module:
    def two(self: Module, x: Tensor) -> Any:
        y = x * 2
        return y, y[:1]

    def forward(self: Module, x: Tensor) -> Tensor:
        a, b = self.two(x)
        b.add_(10)
        return a * 1

    return Module(forward, two=Module(two))


def a_list_that_a_child_fills() -> nn.Module:
    def fill(self: Module, features: list[Tensor], x: Tensor) -> Tensor:
        features.append(x * 2)
        return x

    def forward(self: Module, x: Tensor) -> Tensor:
        features = [x]
        self.fill(features, x)
        return sum(features[1:], torch.zeros(2)) + x

    return Module(forward, fill=Module(fill))


def inputs_that_share_memory() -> nn.Module:
    def change(self: Module, a: Tensor, b: Tensor) -> Tensor:
        b.add_(10)
        return a * 1

    def forward(self: Module, x: Tensor) -> Tensor:
        y = x * 1
        return self.change(y, y[:1])

    return Module(forward, change=Module(change))


@pytest.mark.parametrize(
    "make",
    [
        keep_and_change_later,
        outputs_that_share_memory,
        a_list_that_a_child_fills,
        inputs_that_share_memory,
    ],
)
def test_grads_of_a_model_that_notices_the_clones_are_refused(make: Any) -> None:
    with pytest.raises(hookscope.HookscopeError, match="without hooks gave another result"):
        hookscope.grads(make(), input=torch.ones(2), loss="sum", what=["output", "input"])
    shot = hookscope.capture(make(), input=torch.ones(2), what=["output", "input"], verify=True)
    assert shot.metadata["verified"]  # values alone are recorded without handing clones on


@pytest.mark.parametrize("make", [outputs_that_share_memory, inputs_that_share_memory])
def test_recording_gradients_warns_of_shared_memory(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    net = make()
    with hookscope.record(net, what=["output", "input"], grads=True):
        net(torch.ones(2, requires_grad=True))
    assert "in place" in caplog.text


def test_a_model_that_is_not_deterministic_is_warned_of_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noise = iter(torch.arange(9.0))
    net = Module(lambda self, x: x * next(noise))
    assert hookscope.grads(net, input=torch.ones(2), loss="sum")
    assert "cannot be told" in caplog.text


def test_pythons_and_numpys_random_numbers_are_seeded_and_put_back() -> None:
    net = Module(lambda self, x: x * random.random() * np.random.rand())
    random.seed(7)
    np.random.seed(7)
    expected = (random.random(), np.random.rand())
    random.seed(7)
    np.random.seed(7)
    assert hookscope.capture(net, input=torch.ones(2), verify=True).metadata["verified"]
    assert (random.random(), np.random.rand()) == expected


def test_limits_on_size_hold_for_gradients_too() -> None:
    net = Module(lambda self, x: self.l(x) if x.sum().item() else x, l=nn.Linear(100, 100))
    with pytest.raises(hookscope.HookscopeError, match="more than 50 bytes"):
        hookscope.grads(net, input=torch.ones(10, 100), max_bytes=50, loss="sum")


def test_positional_and_keyword_arguments_of_one_name_stay_apart() -> None:
    net = Module(lambda self, *args, **kwargs: sum(args) + sum(kwargs.values()))
    x = torch.ones(1)
    found = hookscope.grads(net, input=((x,), {"0": x * 5}), loss="sum", what=["input"])
    assert found.output.item() == 6
    assert len(found) == 2


def test_a_copy_made_inside_the_block_records_nothing() -> None:
    net = nn.Linear(2, 2)
    with hookscope.record(net) as capture:
        twin = copy.deepcopy(net)
        net(torch.ones(1, 2))
        twin(torch.ones(1, 2))
    twin(torch.ones(1, 2))
    assert list(capture) == ["./output"]


def test_a_sparse_buffer_is_no_hindrance_and_odd_buffers_are_put_back() -> None:
    class Odd(nn.Module):
        adjacency: Tensor
        memory: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(2).to_sparse())
            self.register_buffer("memory", torch.zeros(1))
            self.register_buffer("later", None)

        def forward(self, x: Tensor) -> Tensor:
            self.memory = torch.cat([self.memory, x.detach()])
            self.later = x.detach()
            return self.adjacency @ x

    net = Odd()
    shot = hookscope.capture(net, input=torch.ones(2), verify=True)
    assert shot.metadata["verified"]
    assert net.memory.tolist() == [0] and net.later is None
    assert torch.equal(net.adjacency.to_dense(), torch.eye(2))


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_gradients_outside_a_function_transform_are_recorded(transform: str) -> None:
    inner = nn.Linear(3, 3)

    def forward(self: Module, x: Tensor) -> Tensor:
        if transform == "vmap":
            mapped: Tensor = torch.func.vmap(inner)(x)
            return mapped
        slope: Tensor = torch.func.grad(lambda v: inner(v).sum())(x)
        return inner(x) + slope

    net = nn.Sequential(Module(forward), nn.Linear(3, 2))
    net[0].inner = inner
    x = torch.randn(2, 3)
    found = hookscope.grads(net, input=x, loss="sum")
    net(x).sum().backward()
    assert inner.weight.grad is not None
    torch.testing.assert_close(found["0.inner/weight.grad"], inner.weight.grad)
    assert any("torch.func" in absent.reason for absent in found.absent)
