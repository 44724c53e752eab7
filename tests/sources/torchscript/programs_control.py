"""Examples of branches, loops, functions, and of what ends a call early."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import warnings
from typing import List, Optional, Tuple

import torch
from torch import Tensor
from torch._awaits import _Await as Await

from tests.sources.torchscript.examples import Table

CONTROL = Table()
X = torch.arange(6.0).reshape(2, 3)


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


@CONTROL.function((3, 3), (3, 100), (0, 0))
def return_inside_nested_loops(self, n: int, sought: int):
    for i in range(n):
        for j in range(n):
            if i * j == sought - 1:
                return i, j, "inner"
        if i == 2 and sought == 100:
            return i, i, "outer"
    return -1, -1, "none"


@CONTROL.function((4,), (0,))
def loop_carries_values(self, n: int):
    a, b = torch.ones(2), torch.zeros(2)
    i, total = 100, 0
    for i in range(n):
        a, b = b + a, a
        n = n - 1
        total += n
    return a, b, i, total, n


class Unhappy(Exception):
    pass


@CONTROL.function(*[(n,) for n in range(9)])
def failing(self, n: int):
    assert n != 5
    assert n != 6, f"n is {n}"
    torch._assert(torch.tensor(n) != 7, "small")
    if n == 1:
        raise ValueError(f"must not be negative: {n}")
    elif n == 2:
        raise NotImplementedError
    elif n == 3:
        raise IndexError("index " + str(n))
    elif n == 4:
        raise Unhappy("not happy")
    elif n == 0:
        result = n * 2
    else:
        raise RuntimeError("high")
    return result


@CONTROL.function((3,))
def warning(self, n: int):
    warnings.warn("a warning of " + str(n))
    return n


@CONTROL.function((4,))
def printing(self, n: int):
    print("n is", n, 1.5, [1, 2], None, "text", True)
    return n


@CONTROL.function((torch.ones(2), 1), (torch.ones(2), 0))
def no_gradients_inside(self, x: Tensor, n: int):
    w = x.clone().requires_grad_(True)
    with torch.no_grad():
        y = w * 2
        if n == 0:
            raise ValueError("inside")
    z = w * 3
    return y, z, y.requires_grad, z.requires_grad, torch.is_grad_enabled()


@CONTROL.function((X,))
def gradients_inside(self, x: Tensor):
    y = x.detach().requires_grad_(True)
    z = (y * y).sum()
    gradients = torch.autograd.grad([z], [y])
    (y * 3).sum().backward()
    return gradients, y.grad, z.requires_grad, z.detach().requires_grad


# Functions


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


def first_or(x: Optional[Tensor], other: Tensor) -> Tensor:
    if x is None:
        return other
    return x


def grown(x: List[Tensor]) -> Tuple[int, List[Tensor]]:
    x.append(x[0])
    return len(x), x


@CONTROL.function((torch.arange(3.0),))
def functions(self, x: Tensor):
    held = [x]
    n, other = grown(held)
    pair = grown(other)
    other.append(x + 1)
    return (
        (twice(x), scaled(x), scaled(x, 3.0), scaled(by=1.0, x=x, shift=4), count(7)),
        (first_or(None, x), first_or(x, x + 1), torch.nn.functional.relu(x - 1)),
        (held, n, pair[0], pair),
    )


def later(x: Tensor, n: int) -> Tensor:
    return x * n + 1


@CONTROL.function((X,))
def futures(self, x: Tensor):
    one = torch.jit.fork(scaled, x, 2.5)
    futures: List[torch.jit.Future[Tensor]] = []
    for i in range(3):
        futures.append(torch.jit.fork(later, x, i))
    total = torch.zeros_like(x)
    for future in futures:
        total = total + torch.jit.wait(future)
    return total, torch.jit.wait(one)


@CONTROL.function((X,))
def awaited(self, x: Tensor):
    a: Await[Tensor] = torch.jit._awaitable(later, x, 3)
    b = torch.jit._awaitable_nowait(x * 2)
    c = torch.jit._awaitable(grown, [x])
    first = torch.jit._awaitable_wait(a)
    n, parts = torch.jit._awaitable_wait(c)
    return first + torch.jit._awaitable_wait(b), n, parts


@CONTROL.function((X, 2, 3))
def arguments_named_as_helpers(
    self, new: Tensor, warn: int, placed: int, Awaitable: int = 1, call_as: int = 2,
    is_instance: int = 3, raise_error: int = 4, uninterpretable: int = 5,
):  # fmt: skip
    a = torch.jit._awaitable(later, new, warn)
    if warn < 0:
        raise ValueError("never")
    y = torch.zeros(2, 3, device="cpu") + new
    total = placed + Awaitable + call_as + is_instance + raise_error + uninterpretable
    return torch.jit._awaitable_wait(a) + y, total
