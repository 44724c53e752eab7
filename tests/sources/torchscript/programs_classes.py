"""Examples of enums, script classes and their interfaces."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from enum import Enum
from typing import Any, List

import torch
from torch import Tensor

from tests.sources.torchscript.examples import Table, quietly

CLASSES = Table()
X = torch.arange(6.0).reshape(2, 3)


class Color(Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


class Rate(Enum):
    LOW = 0.5
    HIGH = 2.0


@CLASSES.function((0,), (1,))
def enum_members(self, n: int):
    tints = [Mode.FAST, Mode.SLOW]
    tint = tints[n]
    tints.append(Mode.FAST)
    names = [one.name for one in tints]
    values = [one.value for one in Color]
    return (
        (tint.name, tint.value, tint == Mode.FAST, tint != Mode.FAST, names, values),
        (Color.RED.name, Color.RED.value, Rate.HIGH.value * 2),
    )


@CLASSES.function((Color.RED,), (Color.GREEN,), fresh=False)
def enum_as_argument(self, c: Color):
    if c == Color.RED:
        return "red", c
    return "other " + c.name, Color.BLUE


# Classes of scripts


class Counter:
    def __init__(self, start: int = 0, name: str = "counter"):
        self.count = start
        self.name = name
        self.seen: List[int] = []

    def add(self, n: int) -> int:
        self.count += n
        self.seen.append(n)
        return self.count

    def add_twice(self, n: int) -> int:
        self.add(n)
        return self.add(n)

    def __len__(self) -> int:
        return len(self.seen)

    def __getitem__(self, i: int) -> int:
        return self.seen[i]

    def __contains__(self, n: int) -> bool:
        return n in self.seen

    def __str__(self) -> str:
        return "counter of " + str(self.count)


class Money:
    def __init__(self, cents: int):
        self.cents = cents

    def __add__(self, other: "Money") -> "Money":
        return Money(self.cents + other.cents)

    def __iadd__(self, n: int) -> "Money":
        self.cents += n
        return self

    def __eq__(self, other: "Money") -> bool:
        return self.cents == other.cents

    def __lt__(self, other: "Money") -> bool:
        return self.cents < other.cents


class Guard:
    def __init__(self, log: List[str]):
        self.log = log

    def __enter__(self) -> int:
        self.log.append("in")
        return len(self.log)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.log.append("out")


@CLASSES.function((3,), (-1,))
def class_with_state(self, n: int):
    c = Counter(n, name="x")
    d = c
    c.add(2)
    d.add_twice(5)
    c.name += "!"
    c.seen += [7]
    return (
        (c.count, d.count, c.name, c.seen, len(c), c[0], 5 in c, 7 in c, c is d),
        (str(c), Counter().count),
    )


@CLASSES.function((3,), (7,))
def class_in_containers(self, n: int):
    held = [Money(5), Money(n), Money(9)]
    table = {"a": held[0]}
    table["a"].cents += 1
    first = held[0]
    first += 1
    held.sort()
    up = [one.cents for one in held]
    held.sort(reverse=True)
    x, y = held[0], held[1]
    down = [one.cents for one in held], [one.cents for one in sorted(held)]
    return up, down, (x + y).cents, x == y, x < y, table["a"].cents


def counted(c: Counter, n: int) -> Counter:
    c.add(n)
    return c


@CLASSES.function((3,), (0,))
def instances_passed_on(self, n: int):
    log: List[str] = []
    c = Counter(1)
    d = counted(counted(c, n), n + 1)
    with Guard(log), Guard(log) as second:
        log.append(str(second + n))
    return c.count, d.seen, c is d, log


def interface(kind):
    """Here, not with other helpers: names are looked up where it is called from."""
    with quietly():
        return torch.jit.interface(kind)


@interface
class Operation:
    def apply(self, x: Tensor) -> Tensor:
        pass


class Doubles:
    def __init__(self):
        self.factor = 2

    def apply(self, x: Tensor) -> Tensor:
        return x * self.factor


class Halves:
    def __init__(self):
        self.by = 2.0

    def apply(self, x: Tensor) -> Tensor:
        return x / self.by


def applied(operation: Operation, x: Tensor) -> Tensor:
    return operation.apply(x)


@CLASSES.function((X,))
def interface_of_classes(self, x: Tensor):
    return applied(Doubles(), x), applied(Halves(), x)
