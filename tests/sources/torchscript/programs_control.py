"""Examples of branches, loops, returns from anywhere, functions, and what ends a call early."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table

CONTROL = Table()

# A chain of 40 branches and twelve loops in one another, as text: TorchScript needs a source.


@CONTROL.function((-1,), (0,), (5,))
def if_elif_else(self, n: int):
    if n < 0:
        text = "less"
    elif n == 0:
        text = "nothing"
    else:
        text = "more"
    return text


@CONTROL.function((-1,), (3,))
def if_without_else(self, n: int):
    found = [1]
    if n > 0:
        found.append(n)
        n = n + 1
    return found, n


@CONTROL.function((1, 2), (2, 1), (2, 2), (0, 0))
def if_inside_if(self, a: int, b: int):
    if a > 0:
        if b > 1:
            if a == b:
                return "same"
            else:
                c = "b large"
        else:
            c = "a alone"
    else:
        c = "none"
    return c


@CONTROL.function(*[(n,) for n in (0, 1, 7, 38, 39, 40, 41)])
def if_chain_of_forty(self, n: int):
    if n == 0:
        r = "0"
    elif n == 1:
        r = "1"
    elif n == 2:
        r = "2"
    elif n == 3:
        r = "3"
    elif n == 4:
        r = "4"
    elif n == 5:
        r = "5"
    elif n == 6:
        r = "6"
    elif n == 7:
        r = "7"
    elif n == 8:
        r = "8"
    elif n == 9:
        r = "9"
    elif n == 10:
        r = "10"
    elif n == 11:
        r = "11"
    elif n == 12:
        r = "12"
    elif n == 13:
        r = "13"
    elif n == 14:
        r = "14"
    elif n == 15:
        r = "15"
    elif n == 16:
        r = "16"
    elif n == 17:
        r = "17"
    elif n == 18:
        r = "18"
    elif n == 19:
        r = "19"
    elif n == 20:
        r = "20"
    elif n == 21:
        r = "21"
    elif n == 22:
        r = "22"
    elif n == 23:
        r = "23"
    elif n == 24:
        r = "24"
    elif n == 25:
        r = "25"
    elif n == 26:
        r = "26"
    elif n == 27:
        r = "27"
    elif n == 28:
        r = "28"
    elif n == 29:
        r = "29"
    elif n == 30:
        r = "30"
    elif n == 31:
        r = "31"
    elif n == 32:
        r = "32"
    elif n == 33:
        r = "33"
    elif n == 34:
        r = "34"
    elif n == 35:
        r = "35"
    elif n == 36:
        r = "36"
    elif n == 37:
        r = "37"
    elif n == 38:
        r = "38"
    elif n == 39:
        r = "39"
    else:
        r = "more"
    return r + "!"


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


@CONTROL.function((4,), (0,), (-3,))
def for_over_a_range(self, n: int):
    total, last = 0, -1
    for i in range(n):
        total += i
        last = i
    return total, last


@CONTROL.function((7, 2), (7, -1), (0, 3))
def for_over_a_stepped_range(self, n: int, step: int):
    found: list[int] = []
    for i in range(n, 0, -2):
        found.append(i)
    for i in range(-3, n, 3):
        found.append(i)
    for i in range(0, n, step):
        found.append(i)
    return found


@CONTROL.function(([1, 2, 3],), ([],))
def for_over_a_list(self, items: list[int]):
    total = 0
    for item in items:
        total = total * 10 + item
    return total


@CONTROL.function(([1, 2, 3],))
def for_over_a_list_that_shrinks(self, items: list[int]):
    found: list[int] = []
    for item in items:
        found.append(item)
        if len(items) > 2:
            items.pop()
    return found, items


@CONTROL.function((1, 2.5, "x"))
def for_over_a_tuple(self, a: int, b: float, c: str):
    text = ""
    for part in (a, b, c):
        text += str(part) + ";"
    return text


@CONTROL.function(({"b": 1, "a": 2},), ({},))
def for_over_a_dict(self, table: dict[str, int]):
    text = ""
    for key in table:
        text += key
    for key, value in table.items():
        text += key + str(value)
    for value in table.values():
        text += str(value)
    for key in table.keys():
        text += key
    return text


@CONTROL.function((["a", "b", "c"],))
def for_with_enumerate(self, items: list[str]):
    text = ""
    for i, item in enumerate(items):
        text += str(i) + item
    for i, item in enumerate(items, 5):
        text += str(i) + item
    return text


@CONTROL.function(([1, 2, 3], ["a", "b"]), ([], ["z"]))
def for_with_zip(self, numbers: list[int], words: list[str]):
    text = ""
    for number, word in zip(numbers, words):
        text += str(number) + word
    for i, (number, word) in enumerate(zip(numbers, words)):
        text += str(i + number) + word
    return text


@CONTROL.function((torch.arange(6).reshape(3, 2),), (torch.zeros(0, 2),))
def for_over_a_tensor(self, x: Tensor):
    parts: list[Tensor] = []
    for row in x:
        parts.append(row * 2)
    return parts


@CONTROL.function(("héllo",), ("",), ("abc",))
def for_over_a_string(self, text: str):
    found: list[str] = []
    for letter in "abc":
        found.append(letter + text)
    return found


@CONTROL.function((100,), (1,), (0,))
def while_loop(self, n: int):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps, n


@CONTROL.function((10,), (3,))
def while_true_with_break(self, n: int):
    i = 0
    while True:
        i += 1
        if i * i > n:
            break
    return i


@CONTROL.function((10,), (0,))
def continue_in_a_loop(self, n: int):
    total = 0
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 7:
            continue
        total += i
    return total


@CONTROL.function(([5, 3, 8, 1], 8), ([5], 8))
def break_and_else_by_flag(self, items: list[int], wanted: int):
    place, found = -1, False
    for i, item in enumerate(items):
        if item == wanted:
            place = i
            found = True
            break
    return place, found


@CONTROL.function((5,), (0,))
def break_and_continue_in_nested_loops(self, n: int):
    found: list[int] = []
    for i in range(n):
        if i == 1:
            continue
        j = 0
        while j < n:
            j += 1
            if j == 2:
                continue
            if i * j > 6:
                break
            found.append(i * 10 + j)
        if i == 4:
            break
    return found


@CONTROL.function((-1,), (0,), (1,))
def early_return(self, n: int):
    if n < 0:
        return "negative"
    if n == 0:
        return "zero"
    return "positive"


@CONTROL.function(([1, 2, 3], 2), ([1, 2, 3], 9), ([], 0))
def return_inside_a_loop(self, items: list[int], wanted: int):
    for i in range(len(items)):
        if items[i] == wanted:
            return i
    return -1


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


@CONTROL.function((True,), (False,))
def return_nothing(self, flag: bool):
    if flag:
        return None
    return None


@CONTROL.function((3,))
def variable_known_in_both_branches(self, n: int):
    if n > 2:
        x = torch.ones(2)
        y = 1
    else:
        x = torch.zeros(3)
        y = 2
    return x * y


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


@CONTROL.function((1,), (-1,))
def lambda_like_nested_calls(self, n: int):
    return halved(halved(halved(n * 8))) + count(halved(10))


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


@CONTROL.function((torch.ones(2), 3), (torch.ones(2), -3))
def return_inside_no_grad(self, x: Tensor, n: int):
    w = x.clone().requires_grad_(True)
    with torch.no_grad():
        y = w * 2
        if n > 0:
            y = y + n
    return y, torch.is_grad_enabled()


@CONTROL.function((torch.ones(2),))
def raise_inside_no_grad(self, x: Tensor):
    with torch.no_grad():
        if x.sum() > 1:
            raise ValueError("inside")
    return x


@CONTROL.function((1,), (2,), (3,))
def with_inside_a_loop(self, n: int):
    w = torch.ones(2).requires_grad_(True)
    for i in range(n):
        with torch.no_grad():
            v = w * 2
            if i == 1:
                with torch.no_grad():
                    v = v + 1
        w = w + v
    return w, torch.is_grad_enabled()


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
