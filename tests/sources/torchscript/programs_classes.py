"""Examples of enums, script classes, interfaces, properties and context managers."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from enum import Enum
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table, quietly

CLASSES = Table()
X = torch.arange(6.0).reshape(2, 3)


def script(kind):
    """Here, not with other helpers: names are looked up where it is called from."""
    with quietly():
        return torch.jit.script(kind)


def interface(kind):
    with quietly():
        return torch.jit.interface(kind)


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


@CLASSES.function(())
def enum_members(self):
    a = Color.RED
    return a.name, a.value, Mode.SLOW.value, Rate.HIGH.value * 2, Mode.FAST.name


@CLASSES.function((1,), (2,), (5,), fresh=False)
def enum_returned(self, n: int):
    if n == 1:
        return Color.RED
    elif n == 2:
        return Color.GREEN
    return Color.BLUE


@CLASSES.function((Color.RED,), (Color.GREEN,), fresh=False)
def enum_as_argument(self, c: Color):
    if c == Color.RED:
        return "red", c
    return "other " + c.name, c


@CLASSES.function(())
def enum_in_a_list(self):
    held = [Color.RED, Color.BLUE, Color.RED]
    found = 0
    for one in held:
        if one == Color.RED:
            found += 1
    held.append(Color.GREEN)
    return found, len(held), held[1].value, held[-1].name


def enum_name(c: Color) -> str:
    return c.name


@CLASSES.function(())
def enum_through_a_function(self):
    return enum_name(Color.RED) + enum_name(Color.GREEN)


@CLASSES.module((), ())
class EnumAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.mode = Mode.FAST
        self.color = Color.GREEN

    def forward(self):
        before = self.mode.value, self.color.value
        self.mode = Mode.SLOW
        return before, self.mode == Mode.SLOW, self.mode.value


@CLASSES.module((X,))
class EnumPassedToASubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaler()

    def forward(self, x: Tensor):
        return self.inner(x, Rate.LOW) + self.inner(x, Rate.HIGH)


class Scaler(nn.Module):
    def forward(self, x: Tensor, rate: Rate):
        if rate == Rate.LOW:
            return x - 1
        return x * rate.value


# Script classes


@script
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

    def __setitem__(self, i: int, n: int) -> None:
        self.seen[i] = n

    def __contains__(self, n: int) -> bool:
        return n in self.seen


@script
class Money:
    def __init__(self, cents: int):
        self.cents = cents

    def __add__(self, other: "Money") -> "Money":
        return Money(self.cents + other.cents)

    def __sub__(self, other: "Money") -> "Money":
        return Money(self.cents - other.cents)

    def __mul__(self, n: int) -> "Money":
        return Money(self.cents * n)

    def __eq__(self, other: "Money") -> bool:
        return self.cents == other.cents

    def __ne__(self, other: "Money") -> bool:
        return self.cents != other.cents

    def __lt__(self, other: "Money") -> bool:
        return self.cents < other.cents

    def __gt__(self, other: "Money") -> bool:
        return self.cents > other.cents

    def __neg__(self) -> "Money":
        return Money(-self.cents)

    def __str__(self) -> str:
        return "money " + str(self.cents)

    def __call__(self, n: int) -> int:
        return self.cents + n

    @property
    def whole(self) -> int:
        return self.cents // 100

    @staticmethod
    def of_whole(n: int) -> int:
        return n * 100


@script
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
    c = Counter(n)
    d = c
    c.add(2)
    d.add_twice(5)
    return c.count, d.count, c.name, c.seen, len(c), c[0], 5 in c, 7 in c, c is d


@CLASSES.function(())
def class_with_defaults_and_keywords(self):
    return (
        Counter().count,
        Counter(5).count,
        Counter(name="x").name,
        Counter(start=2, name="y").count,
    )


@CLASSES.function((3,))
def class_item_assigned(self, n: int):
    c = Counter()
    c.add(1)
    c[0] = n
    c.count = 10
    c.name += "!"
    c.seen += [7]
    return c[0], c.count, c.name, c.seen


@CLASSES.function((3, 4), (4, 4))
def class_operators(self, a: int, b: int):
    x, y = Money(a), Money(b)
    z = x + y
    return (
        z.cents,
        (x - y).cents,
        (x * 3).cents,
        x == y,
        x != y,
        x < y,
        x > y,
        (-x).cents,
        str(x),
        z(5),
    )


@CLASSES.function((3,))
def class_instances_in_containers(self, n: int):
    held = [Money(i) for i in range(n)]
    table = {"a": Money(7)}
    held[0].cents = 100
    table["a"].cents += 1
    total = 0
    for one in held:
        total += one.cents
    pair = (held[0], table["a"])
    return total, pair[0].cents, table["a"].cents, pair[1].cents


@CLASSES.function((3,))
def class_sorted(self, n: int):
    held = [Money(5), Money(n), Money(9)]
    held.sort()
    up = [one.cents for one in held]
    held.sort(reverse=True)
    return up, [one.cents for one in held], [one.cents for one in sorted(held)]


def grown(c: Counter, n: int) -> Counter:
    c.add(n)
    return c


@CLASSES.function((3,))
def instance_through_a_function(self, n: int):
    c = Counter(1)
    d = grown(grown(c, n), n + 1)
    return c.count, d.seen, c is d


@CLASSES.function((3,), (0,))
def two_context_managers(self, n: int):
    log: List[str] = []
    with Guard(log), Guard(log) as second:
        log.append(str(second + n))
    return log


@CLASSES.module((2,), (3,), (4,))
class InstanceAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = Counter(10)

    def forward(self, n: int):
        self.counter.add(n)
        return self.counter.count, self.counter.seen, self.counter.name


@CLASSES.module((2,), (3,))
class InstanceUnderTwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = Counter(10)
        self.inner = HoldsCounter(self.one)
        self.two = self.one

    def forward(self, n: int):
        self.one.add(n)
        found = self.two.count, self.inner(n), self.one is self.two
        self.two = Counter(1)
        return found, self.one.count, self.two.count, self.one is self.two


class HoldsCounter(nn.Module):
    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def forward(self, n: int):
        self.counter.add(100)
        return self.counter.count


@script
class Linked:
    def __init__(self, value: Tensor, table: Dict[str, Tensor]):
        self.value = value
        self.table = table
        self.counter = Counter(1)
        self.maybe = torch.jit.annotate(Optional[Tensor], None)
        self.pair: Tuple[int, str] = (1, "a")

    def use(self, x: Tensor) -> Tensor:
        self.counter.add(1)
        self.table["last"] = x
        self.maybe = x
        return self.value * x + self.counter.count


@CLASSES.module((X,), (X + 1,))
class InstanceOfManyAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linked = Linked(torch.ones(3) * 2, {"first": torch.zeros(1)})

    def forward(self, x: Tensor):
        y = self.linked.use(x)
        return y, self.linked.table, self.linked.maybe, self.linked.pair, self.linked.counter.count


# Interfaces


@interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass

    def weight_sum(self, n: int) -> Tensor:
        pass


class Adds(nn.Module):
    def __init__(self, n: float):
        super().__init__()
        self.n = nn.Parameter(torch.full((1,), n))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.n

    @torch.jit.export
    def weight_sum(self, n: int) -> Tensor:
        return self.n.sum() * n


class Multiplies(nn.Module):
    def __init__(self, n: float):
        super().__init__()
        self.m = nn.Parameter(torch.full((1,), n))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.m

    @torch.jit.export
    def weight_sum(self, n: int) -> Tensor:
        return self.m.sum() + n


@CLASSES.module((X,))
class InterfaceSubmodule(nn.Module):
    layer: Layer

    def __init__(self):
        super().__init__()
        self.layer = Adds(2.0)
        self.other = Multiplies(3.0)

    def forward(self, x: Tensor):
        return self.layer.forward(x), self.layer.weight_sum(3), self.other(x)


@CLASSES.module((X, 0), (X, 1), (X, 2), (X, -1))
class InterfaceByRunTimeIndex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Adds(2.0), Multiplies(3.0)])

    def forward(self, x: Tensor, i: int):
        layer: Layer = self.layers[i]
        return layer.forward(x), layer.weight_sum(i)


@CLASSES.module((X, "a"), (X, "b"), (X, "c"))
class InterfaceByRunTimeKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": Adds(2.0), "b": Multiplies(3.0)})

    def forward(self, x: Tensor, key: str):
        layer: Layer = self.layers[key]
        return layer.forward(x)


@interface
class Operation:
    def apply(self, x: Tensor) -> Tensor:
        pass


@script
class Doubles:
    def __init__(self):
        self.factor = 2

    def apply(self, x: Tensor) -> Tensor:
        return x * self.factor


@script
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


@CLASSES.module((X,))
class PropertiesOfAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3.0

    @property
    def double(self) -> float:
        return self.scale * 2

    @double.setter
    def double(self, value: float) -> None:
        self.scale = value / 2

    def forward(self, x: Tensor):
        before = self.double
        self.double = 10.0
        return x * self.double, before, self.scale
