"""Gradients are those of autograd: at outputs, at a module's own input, and at parameters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.hooks.layers import select
from hookscope.hooks.recorder import Recorder
from hookscope.tensors.nested import map_tensors, walk
from tests.hooks.recordings import BOTH, reasons, recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Module


def three(outputs: int = 1) -> nn.Linear:
    linear = nn.Linear(1, outputs, bias=False)
    nn.init.constant_(linear.weight, 3.0)
    return linear


def long_and_short(self: Module, x: Tensor) -> Tensor:
    y = x * 2
    return self.long(y) + 5 * self.short(y)


def result_not_used(self: Module, x: Tensor) -> Tensor:
    y = x * 2
    self.act(y)  # works in place
    return y


def view_changed(self: Module, x: Tensor) -> Tensor:
    view = self.flat(x * 2)
    before = view * 3
    view.mul_(5)
    return before + view


def view_changed_in_part(self: Module, x: Tensor) -> Tensor:
    view, other = self.two(x * 2)
    view.mul_(5)
    return view + other


# A model, its input, gradients by key, and the keys of those that are told to be at a view.
BY_PAPER: dict[str, tuple[Callable[[], Module], list[float], dict[str, list[float]], set[str]]] = {
    "a module's own share": (
        lambda: Module(lambda self, x: self.branch(x) + 5 * x, branch=three()),
        [2],
        {"branch/input.0": [3], "./input.0": [8]},
        set(),
    ),
    "a module that returns its input has all later uses": (
        lambda: Module(lambda self, x: self.same(x) * 2 + x * 7, same=nn.Identity()),
        [1],
        {"same/output": [9], "same/input.0": [9], "./input.0": [9]},
        set(),
    ),
    "a shortcut leaves out what used its input before": (
        lambda: Module(long_and_short, long=three(), short=nn.Sequential()),
        [1],
        {"short/output": [5], "short/input.0": [5], "long/input.0": [3], "./input.0": [16]},
        set(),
    ),
    "a result that is not used": (
        lambda: Module(result_not_used, act=nn.ReLU(inplace=True)),
        [-1, 3],
        {"./input.0": [0, 2], "act/input.0": [0, 1]},
        set(),
    ),
    "a view that is changed": (
        lambda: Module(view_changed, flat=nn.Unflatten(0, (2, 1))),
        [1, 1],
        {"./input.0": [16, 16]},
        {"flat/output"},
    ),
    "a share that goes on in part as a changed view": (
        lambda: Module(view_changed_in_part, two=Module(lambda self, x: (x.view(-1), x * 3))),
        [1, 1],
        {"two/output.1": [1, 1], "./input.0": [16, 16]},
        {"two/input.0"},
    ),
}


@pytest.mark.parametrize("name", BY_PAPER)
def test_gradients_are_those_worked_out_on_paper(name: str) -> None:
    make, values, expected, views = BY_PAPER[name]
    net = make()
    x = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    capture = recorded(net, x, what=BOTH, grads=True)
    assert {key: capture[f"{key}.grad"].tolist() for key in expected} == expected
    assert x.grad is not None and x.grad.tolist() == expected["./input.0"]
    assert all("a view" in reasons(capture)[f"{key}.grad"] for key in views)
    assert all(capture[f"{key}.grad"].is_contiguous() for key in expected)
    assert not {f"{key}.grad" for key in views} & set(capture)


def test_an_output_that_is_used_within_too_has_the_gradient_from_outside() -> None:
    def inner(self: Module, x: Tensor) -> Any:
        y = self.lin(x)
        return y, y * y

    def forward(self: Module, x: Tensor) -> Any:
        y, square = self.inner(x)
        return y, self.same(y), square + 3 * y

    net = Module(forward, inner=Module(inner, lin=nn.Linear(1, 1)), same=nn.Dropout()).eval()
    x = torch.ones(1, 1)
    y = net.inner.lin(x).item()
    bare = torch.autograd.grad(sum(part.sum() for part in net(x)), list(net.parameters()))
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        out = net(x)
        assert out[0] is out[1]
        sum(part.sum() for part in out).backward()
    assert capture["./output.0.grad"].item() == 2
    assert capture["same/output.grad"].item() == capture["same/input.0.grad"].item() == 5
    assert capture["inner/output.0.grad"].item() == 5
    assert capture["inner.lin/output.grad"].item() == pytest.approx(5 + 2 * y)
    assert same_bits(capture["inner.lin/weight.grad"], bare[0])


def test_a_tensor_of_the_caller_that_is_used_and_returned_stays_the_one_it_is() -> None:
    net = Module(lambda self, x: (x, self.lin(x)), lin=nn.Linear(1, 1))
    x = torch.ones(1, 1, requires_grad=True)
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        same, y = net(x * 1)
        (same * 3 + y).sum().backward()
        given = x * 1
        assert net(given)[0] is given
    assert "returns" in reasons(capture)["./output.0.grad"]
    assert capture["lin/input.0.grad"].item() == net.lin.weight.item()


def test_gradients_stand_in_the_order_in_which_they_arrived() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    capture = recorded(net, torch.ones(1, 2), layers=["0", "1", "2"], grads=True)
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
    capture = recorded(net, torch.ones(1, 2), what=BOTH, grads=True)
    why = reasons(capture)
    assert why["aside/output.grad"] == why["aside/weight.grad"] == "outside the loss"
    assert why["frozen/weight.grad"] == "frozen"
    assert why["ints/output.grad"] == "integer"
    assert why["idle/weight.grad"] == "never ran"
    assert "frozen/output.grad" in capture  # the input requires grad, so this one exists


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


def test_a_result_changed_in_place_behind_an_identity_is_changed_as_without_hooks() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        self.same(y).add_(10)  # changes y too
        return y * y

    net = Module(forward, lin=nn.Linear(2, 2), same=nn.Identity())
    x = torch.randn(1, 2, requires_grad=True)
    bare = net(x)
    expected = torch.autograd.grad(bare.sum(), net.lin.weight)[0]
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        output = net(x)
        output.sum().backward()
    assert same_bits(output, bare)
    assert same_bits(capture["lin/weight.grad"], expected)
    assert torch.equal(capture["lin/output.grad"], 2 * (net.lin(x) + 10))
    found = hookscope.grads(net, input=x.detach(), loss="sum", what=BOTH)
    assert same_bits(found["lin/output.grad"], capture["lin/output.grad"])


def test_the_models_input_gradient_can_be_had_whatever_layers_are_chosen() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).requires_grad_(False)
    x = torch.randn(1, 2)
    with Recorder(net, select(net, ["1"]), ["output.grad"], model_input=True) as capture:
        net(x).sum().backward()
    assert set(capture) == {"1/output.grad", "./input.0.grad"}
    assert torch.allclose(capture["./input.0.grad"], net[1].weight @ net[0].weight)
    assert capture.coverage.matched == 1


def keep_and_change_later(self: Module, x: Tensor) -> Tensor:
    def keep(part: Module, x: Tensor) -> Tensor:
        part.last = x * 2
        return part.last

    self.part.function = keep
    y = self.part(x)
    self.part.last.add_(100)
    return y * 1


def outputs_that_share_memory(self: Module, x: Tensor) -> Tensor:
    def two(part: Module, x: Tensor) -> Any:
        y = x * 2
        return y, y[:1]

    self.part.function = two
    a, b = self.part(x)
    b.add_(10)
    return a * 1


def a_list_that_a_child_fills(self: Module, x: Tensor) -> Tensor:
    features = [x]
    self.part.function = lambda part, features, x: features.append(x * 2)
    self.part(features, x)
    return sum(features[1:], torch.zeros(2)) + x


def inputs_that_share_memory(self: Module, x: Tensor) -> Tensor:
    self.part.function = lambda part, a, b: (b.add_(10), a * 1)[1]
    y = x * 1
    return self.part(y, y[:1])


@pytest.mark.parametrize(
    "make",
    [
        keep_and_change_later,
        outputs_that_share_memory,
        a_list_that_a_child_fills,
        inputs_that_share_memory,
    ],
)
def test_models_that_count_on_a_tensor_being_one_they_know_are_recorded(make: Any) -> None:
    net, x = Module(make, part=Module()), torch.ones(2, requires_grad=True)
    bare = net(x)
    (expected,) = torch.autograd.grad(bare.sum(), x)
    found = hookscope.grads(net, input=x.detach(), loss="sum", what=BOTH)
    assert same_bits(found.output, bare)
    assert same_bits(found["./input.0.grad"], expected)
    capture = recorded(net, x, what=BOTH, grads=True)
    assert same_bits(capture["./input.0.grad"], expected)


def test_a_view_that_goes_on_changed_in_place_is_not_called_outside_the_loss() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.ReLU(inplace=True))
    capture = recorded(net, torch.ones(1, 2), what=BOTH, grads=True)
    why = reasons(capture)
    for key in ("1/output.grad", "1/input.0.grad", "2/input.0.grad"):
        assert "a view" in why[key] or "share its memory" in why[key]
    assert {"0/output.grad", "0/input.0.grad", "2/output.grad"} <= set(capture)


def test_a_model_that_is_not_deterministic_is_warned_of_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noise = iter(torch.arange(9.0))
    net = Module(lambda self, x: x * next(noise))
    assert hookscope.grads(net, input=torch.ones(2), loss="sum")
    assert "hooks" in caplog.text


def test_pythons_and_numpys_random_numbers_are_seeded_and_put_back() -> None:
    net = Module(lambda self, x: x * random.random() * np.random.rand())
    random.seed(7)
    np.random.seed(7)
    expected = (random.random(), np.random.rand())
    random.seed(7)
    np.random.seed(7)
    assert hookscope.capture(net, input=torch.ones(2), verify=True).metadata["verified"]
    assert (random.random(), np.random.rand()) == expected


def test_positional_and_keyword_arguments_of_one_name_stay_apart() -> None:
    net = Module(lambda self, *args, **kwargs: sum(args) + sum(kwargs.values()))
    x = torch.ones(1)
    found = hookscope.grads(net, input=((x,), {"0": x * 5}), loss="sum", what=["input"])
    assert found.output.item() == 6
    assert len(found) == 2


def test_a_sparse_buffer_is_no_hindrance_and_odd_buffers_are_put_back() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        self.memory = torch.cat([self.memory, x.detach()])
        self.later = x.detach()
        return self.adjacency @ x

    net = Module(forward)
    net.register_buffer("adjacency", torch.eye(2).to_sparse())
    net.register_buffer("memory", torch.zeros(1))
    net.register_buffer("later", None)
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


def test_gradients_that_are_differentiated_again_are_those_of_the_first_pass() -> None:
    net = Module(lambda self, x: self.act(x).square() + self.act(x), act=nn.Tanh())
    x = torch.tensor([0.5, -0.3], requires_grad=True)
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
    first = recorded(net, x, what=BOTH, grads=True)
    gradients = {key for key in first if key.endswith("grad")}
    assert len(gradients) == 6
    assert all(same_bits(capture[key], first[key]) for key in gradients)
    assert "create_graph" in reasons(capture)["act/input.0.grad"]


def test_the_penaltys_own_gradient_at_every_input_is_that_of_a_clone_by_hand() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.rand(2, 3)
    found = hookscope.grads(net, input=x, loss="sum", penalty="gp", what=BOTH)
    leaf = x.clone().requires_grad_()
    hidden = net[1](leaf.clone().relu())
    into = hidden.clone()
    (slope,) = torch.autograd.grad(net[3](net[2](into)).sum(), leaf, create_graph=True)
    penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
    expected = torch.autograd.grad(penalty, [leaf, into])
    torch.testing.assert_close(found["./input.0.grad"], expected[0])
    torch.testing.assert_close(found["2/input.0.grad"], expected[1])


def test_a_pass_that_stops_on_its_way_leaves_nothing_for_the_next() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        self.kept = y
        return self.inner(y)

    inner = Module(lambda self, y: y.sin() * 2 + y.cos() * self.w.weight.sum(), w=nn.Linear(1, 1))
    net = Module(forward, lin=nn.Linear(1, 1), inner=inner)
    x = torch.ones(1, 1)
    once = recorded(net, x, layers="inner", what="input", grads=True)
    with hookscope.record(net, layers="inner", what="input", grads=True) as capture:
        loss = net(x).sum()
        torch.autograd.grad(loss, inner.w.weight, retain_graph=True)
        loss.backward()
    assert same_bits(capture["inner/input.0.grad"], once["inner/input.0.grad"])


def test_inputs_of_the_model_that_share_memory_are_warned_of_where_the_model_gets_clones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forward(self: Module, a: Tensor, b: Tensor) -> Tensor:
        b.add_(10)
        return a * 1

    net, x = Module(forward), torch.ones(2)
    with hookscope.record(net, what="input", grads=True):
        net(x, x[:1])
    (warning,) = caplog.records
    assert warning.getMessage().startswith(".: ") and "memory" in warning.getMessage()


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.LSTM, nn.GRU, nn.RNN])
def test_an_output_that_its_own_module_uses_has_the_gradient_from_outside_wherever_it_is_called(
    kind: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    inner, x = kind(3, 4), torch.randn(2, 3)

    def loss(output: Any) -> Tensor:
        first, second = output if isinstance(output[1], Tensor) else (output[0], output[1][1])
        return first.sum() * 2 + (second**2).sum()

    output = inner(x)
    apart = map_tensors(output, lambda path, tensor: tensor.detach().requires_grad_())
    loss(apart).backward()
    expected = {
        f"output.{'.'.join(path)}.grad": tensor.grad
        for path, tensor in walk(apart)
        if tensor.grad is not None
    }
    assert len(expected) == 2
    around = Module(lambda self, x: self.inner(x), inner=inner)
    for module, called in ((inner, inner), (around, around), (around, inner)):
        prefix = "./" if module is inner else "inner/"
        with hookscope.record(module, grads=True) as capture:
            loss(called(x)).backward()
        for name, gradient in expected.items():
            assert same_bits(capture[prefix + name], gradient), prefix + name
