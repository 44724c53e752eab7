"""Examples of branches, loops, returns from anywhere, functions, and what ends a call early."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table

CONTROL = Table()


@CONTROL.function((2,), (1,), (0,))
def loops_twelve_deep(self, n: int):
    total = 0
    for a in range(n):
        for b in range(n):
            for c in range(1):
                for d in range(n):
                    for e in range(1):
                        for f in range(n):
                            for g in range(1):
                                for h in range(n):
                                    for i in range(1):
                                        for j in range(n):
                                            for k in range(1):
                                                for m in range(n):
                                                    if (a + b + d) % 2 == 0:
                                                        total += a + 2 * f - h * m
                                                    if total > 50 and m == 1:
                                                        break
                                                    total += c + e + g + i + j + k
    return total


@CONTROL.function(([1, 2, 3],))
def for_over_a_list_that_shrinks(self, items: list[int]):
    found: list[int] = []
    for item in items:
        found.append(item)
        if len(items) > 2:
            items.pop()
    return found, items


@CONTROL.function(([5, 3, 8, 1], 8), ([5], 8))
def break_and_else_by_flag(self, items: list[int], wanted: int):
    place, found = -1, False
    for i, item in enumerate(items):
        if item == wanted:
            place = i
            found = True
            break
    return place, found


@CONTROL.function((3, 3), (3, 100), (0, 0))
def return_inside_nested_loops(self, n: int, sought: int):
    for i in range(n):
        for j in range(n):
            if i * j == sought - 1:
                return i, j, "inner"
        if i == 2 and sought == 100:
            return i, i, "outer"
    return -1, -1, "none"


@CONTROL.function((3,), (30,))
def return_inside_while_true(self, n: int):
    while True:
        n += 7
        if n % 5 == 0:
            return n


@CONTROL.function((4,))
def loop_carries_tensors(self, n: int):
    a, b = torch.ones(2), torch.zeros(2)
    for i in range(n):
        a, b = b + a, a
    return a, b


@CONTROL.function((3,), (0,))
def loop_swaps_variables(self, n: int):
    a, b, c = 1, 2, 3
    for i in range(n):
        a, b, c = c, a, b
    return a, b, c


@CONTROL.function((5,))
def loop_variable_outlives_the_loop(self, n: int):
    i = 100
    for i in range(n):
        pass
    return i


@CONTROL.function((3,), (-1,))
def loop_bound_that_changes(self, n: int):
    total = 0
    for i in range(n):
        n = n - 1
        total += n
    return total, n


def twice(x, n: int = 2):
    return x * n


def scaled(x: Tensor, by: float = 1.5, shift: int = 1) -> Tensor:
    if by > 2:
        return x * by
    return twice(x) * by + shift


def count(n: int) -> int:
    total = 0
    for i in range(n):
        total += halved(i)
    return total


def halved(n: int) -> int:
    if n % 2 == 0:
        return n // 2
    return n


@CONTROL.function((torch.arange(3.0),))
def free_functions(self, x: Tensor):
    return twice(x), scaled(x), scaled(x, 3.0), scaled(x, shift=4), scaled(by=1.0, x=x), count(7)


def repeated(x: list[Tensor]) -> list[Tensor]:
    x.append(x[0])
    return x


def first_or(x: Tensor | None, other: Tensor) -> Tensor:
    if x is None:
        return other
    return x


@CONTROL.function((torch.arange(3.0),))
def one_function_for_several_types(self, x: Tensor):
    return first_or(None, x), first_or(x, x + 1), torch.nn.functional.relu(x - 1), repeated([x])


@CONTROL.function((torch.arange(3.0),))
def function_that_changes_its_argument(self, x: Tensor):
    held = [x]
    other = repeated(held)
    other.append(x + 1)
    return held, other


def many() -> tuple[int, str, list[int]]:
    return 1, "a", [2]


@CONTROL.function(())
def function_with_several_results(self):
    a, b, c = many()
    d = many()
    return a, b, c, d[1], d


@CONTROL.function((-1,), (1,))
def raise_with_a_message(self, n: int):
    if n < 0:
        raise ValueError(f"must not be negative: {n}")
    return n


@CONTROL.function((0,), (1,), (2,), (3,))
def raise_of_several_kinds(self, n: int):
    if n == 0:
        raise RuntimeError("runtime")
    elif n == 1:
        raise NotImplementedError
    elif n == 2:
        raise IndexError("index " + str(n))
    return n


class Unhappy(Exception):
    pass


@CONTROL.function((-1,), (1,))
def raise_a_class_of_its_own(self, n: int):
    if n < 0:
        raise Unhappy("not happy")
    return n


@CONTROL.function((-1,), (1,))
def raise_in_both_ways_out(self, n: int):
    if n < 0:
        raise ValueError("low")
    elif n < 10:
        result = n * 2
    else:
        raise ValueError("high")
    return result


@CONTROL.function((3,), (11,))
def raise_inside_a_loop(self, n: int):
    total = 0
    for i in range(n):
        if i == 10:
            raise RuntimeError("too long")
        total += i
    return total


@CONTROL.function((1,), (0,))
def assertion(self, n: int):
    assert n > 0
    return n


@CONTROL.function((1,), (0,))
def assertion_with_a_message(self, n: int):
    assert n > 0, f"n is {n}"
    return n


@CONTROL.function((torch.ones(2),), (torch.zeros(2),))
def assertion_on_a_tensor(self, x: Tensor):
    assert x.sum() > 1, "too small"
    torch._assert(x.sum() > 1, "small")
    return x


@CONTROL.function((1,))
def warning(self, n: int):
    warnings.warn("a warning of " + str(n))
    return n


@CONTROL.function((torch.ones(2),))
def no_gradients_inside(self, x: Tensor):
    w = x.clone().requires_grad_(True)
    with torch.no_grad():
        y = w * 2
    z = w * 3
    return y, z, y.requires_grad, z.requires_grad, torch.is_grad_enabled()


@CONTROL.function((torch.ones(2),))
def raise_inside_no_grad(self, x: Tensor):
    with torch.no_grad():
        if x.sum() > 1:
            raise ValueError("inside")
    return x


@CONTROL.function((torch.randn(3, 4),))
def fork_and_wait(self, x: Tensor):
    one = torch.jit.fork(twice, x)
    two = torch.jit.fork(scaled, x, 2.5)
    return torch.jit.wait(one) + torch.jit.wait(two)


@CONTROL.module((torch.randn(2),))
class ForkOfAMethod(nn.Module):
    def half(self, x: Tensor, n: int = 2) -> Tensor:
        return x / n

    def forward(self, x: Tensor):
        futures: list[torch.jit.Future[Tensor]] = []
        for i in range(3):
            futures.append(torch.jit.fork(self.half, x, i + 1))
        found: list[Tensor] = []
        for future in futures:
            found.append(torch.jit.wait(future))
        return found


@CONTROL.module((torch.randn(2),))
class ForkOfASubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor):
        future = torch.jit.fork(self.inner, x)
        return torch.jit.wait(future) + self.inner(x)


@CONTROL.module((1,), (1,))
class PrintsThings(nn.Module):
    def forward(self, n: int):
        print("n is", n, 1.5, [1, 2], None, "text", True)
        return n


class Point(NamedTuple):
    x: int
    y: Tensor


@CONTROL.function((3,), (0,))
def loop_over_named_tuples(self, n: int):
    points = [Point(i, torch.ones(1) * i) for i in range(n)]
    total = torch.zeros(1)
    for point in points:
        total += point.x * point.y
    for x, y in points:
        total = total + x + y
    return total, points
