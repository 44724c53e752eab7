"""Models that look at the tensors they pass about: while gradients are recorded they see the same.

Every model here computes something else if a tensor is replaced by a clone of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.recordings import BOTH
from tests.oracle.by_hand import same_bits
from tests.zoo import Module


class Logged(Tensor):
    """A tensor with a state of its own, which counts what is done with it."""

    calls: int = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Slotted(Tensor):
    """A tensor with a state in a slot."""

    __slots__ = ("scale",)
    scale: float


class OneSlot(Tensor):
    __slots__ = "scale"


def linear() -> nn.Linear:
    return nn.Linear(3, 3)


def an_attribute_of_an_output() -> nn.Module:
    def scaled(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        y.scale = 2.0
        return y

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y * getattr(y, "scale", 1.0)

    return Module(forward, inner=Module(scaled, lin=linear()))


def an_attribute_of_an_input() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = x * 1
        y.scale = 3.0
        return self.inner(y)

    scaled = Module(lambda self, x: self.lin(x) * getattr(x, "scale", 1.0), lin=linear())
    return Module(forward, inner=scaled)


def an_attribute_set_on_an_input() -> nn.Module:
    def mark(self: Module, x: Tensor) -> Tensor:
        x.scale = 4.0
        return self.lin(x)

    def forward(self: Module, x: Tensor) -> Tensor:
        y = x * 1
        z: Tensor = self.inner(y)
        return z * getattr(y, "scale", 1.0)

    return Module(forward, inner=Module(mark, lin=linear()))


def passed_through(same: nn.Module) -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        z = self.same(y)
        return z * 2 if z is y else z * 5

    return Module(forward, lin=linear(), same=same)


def one_tensor_in_a_tuple_twice() -> nn.Module:
    def two(self: Module, x: Tensor) -> Any:
        y = self.lin(x)
        return y, (y, {"again": y})

    def forward(self: Module, x: Tensor) -> Tensor:
        a, (b, c) = self.inner(x)
        return a * 2 if a is b and b is c["again"] else a * 5

    return Module(forward, inner=Module(two, lin=linear()))


def what_a_module_keeps() -> nn.Module:
    def keep(self: Module, x: Tensor) -> Tensor:
        self.last = self.lin(x)
        return self.last

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.inner.last.mul_(3)
        return y * 2 if y is self.inner.last else y * 5

    return Module(forward, inner=Module(keep, lin=linear()))


def a_parameter_as_input_and_output() -> nn.Module:
    def use(self: Module, weight: Tensor, x: Tensor) -> Tensor:
        known = isinstance(weight, nn.Parameter) and weight.is_leaf and weight.grad_fn is None
        return x @ weight * (2 if known else 5)

    def forward(self: Module, x: Tensor) -> Tensor:
        weight = self.own()
        return self.use(weight, x) + (weight if weight is self.own.weight else 0 * weight)

    net = Module(forward, own=Module(lambda self: self.weight), use=Module(use))
    net.own.weight = nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))
    return net


def a_gradient_that_is_retained() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        y.retain_grad()
        z = self.act(y)
        return z * 2 if y.retains_grad and y.grad_fn is not None else z * 5

    return Module(forward, lin=linear(), act=nn.Tanh())


def a_view_and_what_it_is_a_view_of() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x)
        v = self.flat(y)
        v.data.mul_(2)
        return y * 2 if v._base is y else y * 5

    return Module(forward, lin=linear(), flat=nn.Flatten(0))


def a_subclass_with_a_state() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.lin(x).as_subclass(Slotted)
        y.scale = 7.0
        return self.inner(y).as_subclass(Tensor)

    return Module(forward, lin=linear(), inner=Module(lambda self, x: x * x.scale))


def a_subclass_that_counts() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        Logged.calls = 0
        y = self.inner(self.lin(x).as_subclass(Logged))
        return (y * 2).as_subclass(Tensor) * Logged.calls

    return Module(forward, lin=linear(), inner=nn.Tanh())


def a_complex_tensor_with_an_attribute() -> nn.Module:
    def turn(self: Module, x: Tensor) -> Tensor:
        y = torch.complex(self.lin(x), x).conj()
        y.scale = 3.0
        return y

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.inner(x)
        return (self.same(y) * y * y.scale).abs()

    return Module(forward, inner=Module(turn, lin=linear()), same=nn.Identity())


MODELS = [
    an_attribute_of_an_output,
    an_attribute_of_an_input,
    an_attribute_set_on_an_input,
    lambda: passed_through(nn.Sequential(nn.Identity())),
    lambda: passed_through(nn.Sequential(nn.Dropout(), nn.Identity())),
    lambda: passed_through(nn.Sequential()),
    lambda: passed_through(nn.ReLU(inplace=True)),
    one_tensor_in_a_tuple_twice,
    what_a_module_keeps,
    a_parameter_as_input_and_output,
    a_gradient_that_is_retained,
    a_view_and_what_it_is_a_view_of,
    a_subclass_with_a_state,
    a_subclass_that_counts,
    a_complex_tensor_with_an_attribute,
]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_output_and_gradients_are_those_of_a_run_without_hooks(
    make: Any, requires_grad: bool
) -> None:
    torch.manual_seed(0)
    net = make().eval()
    x = torch.randn(3, 3, requires_grad=requires_grad)
    bare = net(x)
    expected = torch.autograd.grad(bare.square().sum(), list(net.parameters()))
    with hookscope.record(net, what=BOTH, grads=True):
        output = net(x)
        output.square().sum().backward()
    assert same_bits(output, bare)
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        assert parameter.grad is not None and same_bits(parameter.grad, grad)
    found = hookscope.grads(net, input=x.detach(), loss="sum", what=BOTH)
    assert same_bits(found.output, bare)


@pytest.mark.parametrize("kind", [Slotted, OneSlot])
def test_the_models_input_keeps_its_class_and_attributes_and_gets_those_that_the_model_sets(
    kind: type[Tensor],
) -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        assert type(x) is kind
        del x.old
        x.new = x.scale * 2
        return self.lin(x) * x.scale

    net = Module(forward, lin=linear())
    x = torch.ones(1, 3).as_subclass(kind)  # it does not require grad: the model gets a clone
    x.scale, x.old = 3.0, 1
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        output = net(x)
        output.sum().backward()
    assert same_bits(output.as_subclass(Tensor), net.lin(torch.ones(1, 3)) * 3)
    assert x.new == 6 and not hasattr(x, "old")
    assert not x.requires_grad
    torch.testing.assert_close(capture["./input.0.grad"], 3 * net.lin.weight.sum(0, keepdim=True))


def test_attributes_pass_through_a_hook_that_changes_gradients() -> None:
    def double(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return tuple(grad * 2 for grad in grad_input)

    for make in (an_attribute_of_an_output, an_attribute_of_an_input, an_attribute_set_on_an_input):
        net, x = make(), torch.randn(1, 3)
        found = hookscope.grads(
            net, input=x, loss="sum", hooks={"inner": double}, hook_kind="backward"
        )
        assert same_bits(found.output, net(x))


def test_an_edited_tensor_has_the_attributes_of_the_one_it_stands_for() -> None:
    net, x = an_attribute_of_an_output(), torch.randn(1, 3)
    found = hookscope.capture(net, input=x, edits="inner=scale:2")
    assert same_bits(found.output, net(x) * 2)


def test_a_loop_of_recorded_steps_holds_no_graph() -> None:
    import weakref

    class Mark:
        pass

    marks: list[weakref.ref[Mark]] = []

    def forward(self: Module, x: Tensor) -> Tensor:
        y = self.same(self.lin(x))
        mark = y.grad_fn.metadata["mark"] = Mark()
        marks.append(weakref.ref(mark))
        return y * y.sin() + self.lin(y)

    net = Module(forward, lin=linear(), same=nn.Identity())
    with hookscope.record(net, what=BOTH, grads=True):
        for _ in range(3):
            net(torch.randn(1, 3)).sum().backward()
        assert [mark() for mark in marks[:-1]] == [None, None]
