"""Gates in the way of gradients, and lent clones: values and layouts stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hookscope.tensors.grad_mode import BackwardHookPair, carries_gradient, insert_gradient_gate
from hookscope.tensors.input_clones import (
    InputClone,
    clone_preserving_strides,
    shared_storages,
    storage_id,
    write_back,
)
from tests.oracle.by_hand import same_bits


def test_a_gate_shows_the_gradients_of_all_its_tensors_at_once() -> None:
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    whole, seen = torch.arange(3), []

    def function(grads: Any) -> Any:
        seen.append([None if grad is None else grad.tolist() for grad in grads])
        return tuple(None if grad is None else grad * 10 for grad in grads)

    value = insert_gradient_gate({"a": a, "n": whole, "both": [b, a]}, function)
    assert value["n"] is whole and value["a"] is value["both"][1]
    assert value["a"] is not a and torch.equal(value["a"], a)
    (value["a"].sum() + value["both"][1].sum() * 2).backward()
    assert seen == [[[3, 3], None, None]]
    assert a.grad is not None and a.grad.tolist() == [30, 30]
    assert b.grad is None or b.grad.tolist() == [0, 0]


def test_the_way_back_knows_both_ends_of_a_call() -> None:
    seen: list[Any] = []

    def function(into: Any, out: Any) -> Any:
        seen.append(([g if g is None else g.tolist() for g in into], [g.tolist() for g in out]))
        return tuple(None if grad is None else grad * 2 for grad in into)

    arrived: list[Any] = []
    way = BackwardHookPair(function, arrived.append)
    x = torch.ones(2, requires_grad=True)
    (given,) = way.enter((x,))
    out = way.leave(given * 3)
    (out * 5).sum().backward()
    assert seen == [([[15, 15]], [[5, 5]])]
    assert [g.tolist() for g in arrived[0]] == [[5, 5]]
    assert x.grad is not None and x.grad.tolist() == [30, 30]


def test_the_way_back_ends_at_the_output_where_no_input_asks_for_a_gradient() -> None:
    seen: list[Any] = []

    def function(into: Any, out: Any) -> Any:
        seen.append((into, [g.tolist() for g in out]))
        return into

    way = BackwardHookPair(function)
    weight = torch.ones(2, requires_grad=True)
    x, y = torch.ones(2), torch.ones(2)
    assert way.enter((x, y, x)) == (x, y, x)
    way.leave(weight * x).sum().backward()
    assert seen == [((None, None), [[1, 1]])]
    assert weight.grad is not None and weight.grad.tolist() == [1, 1]


def test_a_change_in_place_behind_a_gate_reaches_the_caller() -> None:
    way = BackwardHookPair(lambda into, out: into)
    base = torch.ones(2, requires_grad=True)
    x = base * 1
    (given,) = way.enter((x,))
    assert given is not x
    given.mul_(3)
    assert x.tolist() == [1, 1]
    way.leave(given)
    assert x.tolist() == [3, 3]


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).T,
    "gaps between rows": lambda: torch.randn(3, 8)[:, :4],
    "every other": lambda: torch.randn(6, 8)[::2, ::2],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one row": lambda: torch.randn(1, 8)[:, :4],
    "no dimension": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 4),
    "gaps, in double precision": lambda: torch.randn(3, 8, dtype=torch.float64)[:, :4],
    "from the middle": lambda: torch.randn(5, 6)[1:3, 2:4],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lent_clone_lies_in_memory_as_the_tensor_does(layout: str) -> None:
    tensor = LAYOUTS[layout]()
    clone = clone_preserving_strides(tensor)
    assert clone.stride() == tensor.stride() and same_bits(clone, tensor)
    assert storage_id(clone) != storage_id(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(1).expand(4),
        torch.ones(3, 1).expand(3, 4),
        torch.arange(6.0).as_strided((3, 3), (1, 1)),
        torch.arange(9.0).as_strided((2, 4), (3, 1)),
        torch.eye(3).to_sparse(),
    ],
)
def test_a_tensor_whose_entries_share_memory_is_cloned_plainly(tensor: Tensor) -> None:
    clone = clone_preserving_strides(tensor)
    dense = clone.to_dense() if clone.is_sparse else clone
    assert torch.equal(dense, tensor.to_dense() if tensor.is_sparse else tensor)
    if not clone.is_sparse:
        clone.add_(torch.arange(clone.numel()).reshape(clone.shape))  # each entry is its own
        assert torch.equal(clone, tensor + torch.arange(clone.numel()).reshape(clone.shape))


def lent(original: Tensor) -> InputClone:
    clone = original.detach().clone()
    return InputClone(original, clone, clone._version)


def test_only_a_clone_that_was_changed_is_given_back() -> None:
    x = torch.zeros(3)
    same, changed, reshaped = lent(x), lent(x), lent(x)
    version = x._version
    assert write_back(same) and not same.changed and x._version == version
    changed.clone.add_(2)
    assert changed.changed and write_back(changed) and x.tolist() == [2, 2, 2]
    reshaped.clone.unsqueeze_(0)
    assert not write_back(reshaped) and x.tolist() == [2, 2, 2]


def test_memory_in_common_is_that_of_two_tensors() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    assert shared_storages([x, y]) == set()
    assert shared_storages([x, x]) == set()
    assert shared_storages([x, x[1:], y]) == {storage_id(x)}
    assert shared_storages([x, x[1:], x[2:], y, y.view(2, 2)]) == {storage_id(x), storage_id(y)}
    sparse = torch.eye(2).to_sparse()
    assert storage_id(sparse) == id(sparse)
    assert storage_id(x.view(2, 2)) == storage_id(x) != storage_id(y)


def test_a_gate_needs_a_gradient_to_stand_in_the_way_of() -> None:
    x = torch.ones(2)
    assert insert_gradient_gate(x, lambda grads: grads) is x
    with torch.no_grad():
        y = torch.ones(2, requires_grad=True)
        assert insert_gradient_gate(y, lambda grads: grads) is y and not carries_gradient(y)
    assert carries_gradient(y) and not carries_gradient(x)
    inside: list[bool] = []

    def look(t: Tensor) -> Tensor:
        inside.append(carries_gradient(t))
        return (t * y).sum()

    torch.func.grad(look)(x)
    assert inside == [False]
