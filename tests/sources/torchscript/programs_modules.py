"""Examples of modules in scripted code: containers, attributes, methods, training, odd names."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from typing import Dict, Final, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table
from tests.sources.torchscript.programs_classes import Counter, Mode, interface

MODULES = Table()
X = torch.arange(6.0).reshape(2, 3)


class Scale(nn.Module):
    def __init__(self, n: float = 2.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), n))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


# Children


@MODULES.module((X,))
class ListOfModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.ModuleList([Scale(1.5), nn.ReLU(), Scale(3.0)])
        self.more = nn.ModuleList([nn.ReLU(), nn.Sigmoid()])

    def forward(self, x: Tensor):
        for item in self.items:
            x = item(x)
        for i, (a, b) in enumerate(zip(self.items, self.more)):
            x = b(a(x)) + i
        return x, self.items[0](x), self.items[-1](x), len(self.items)


@MODULES.module((X,))
class DictOfModules(nn.Module):
    def __init__(self):
        super().__init__()
        inner = nn.ModuleDict({"y": Scale(4.0)})
        self.table = nn.ModuleDict({"a-b": Scale(1.5), "0": Scale(3.0), "x y": nn.Tanh()})
        self.deep = nn.ModuleDict({"x": inner})

    def forward(self, x: Tensor):
        names: List[str] = []
        for name, item in self.table.items():
            x = item(x)
            names.append(name)
        for name in self.table.keys():
            names.append(name)
        return x, names, self.table["a-b"](x), "0" in self.table, self.deep["x"]["y"](x)


@MODULES.module((X,))
class SharedModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = Scale(2.0)
        self.two = self.one
        self.three = nn.Sequential(self.one, Scale(5.0))
        self.three[1].w = self.one.w

    def forward(self, x: Tensor):
        return self.one(x), self.two(x), self.three(x)


@MODULES.module((X,))
class ReadsFromItsChildren(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.deep = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3) * i) for i in range(3)])

    def forward(self, x: Tensor):
        for w in self.weights:
            x = x + w
        return (
            (self.inner.weight * 2, self.inner.bias, x @ self.inner.weight.t(), self.weights[1]),
            (self.norm.running_mean, self.norm.eps, self.norm.training, self.norm(x)),
            (self.inner.in_features, self.deep[0].weight),
        )


@MODULES.module((X,))
class NoneInPlaces(nn.Module):
    names: Final[List[str]]
    __constants__ = ["flag"]

    def __init__(self):
        super().__init__()
        self.names, self.flag = ["a", "b"], True
        self.down: Optional[nn.Module] = None
        self.register_parameter("bias", None)
        self.linear = nn.Linear(3, 2, bias=False)
        self.dropout = nn.Dropout(0.5)
        self.there = 3

    def forward(self, x: Tensor):
        if self.training:
            x = self.dropout(x)
        if self.down is not None:
            x = self.down(x)
        if self.bias is not None:
            x = x + self.bias
        if hasattr(self, "there"):
            x = x + self.there
        if hasattr(self, "not_there"):
            x = x + self.not_there
        if not self.flag:
            x = x - 1
        found = self.linear(x), self.linear.bias is None, self.dropout.training
        return found, getattr(self, "missing", 7), self.names


@MODULES.module((X,))
class ForkOfASubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def half(self, x: Tensor, n: int = 2) -> Tensor:
        return x / n

    def forward(self, x: Tensor):
        future = torch.jit.fork(self.inner, x)
        half = torch.jit.fork(self.half, x, 4)
        return torch.jit.wait(future) + self.inner(x), torch.jit.wait(half)


# Methods


@MODULES.module((X, [1]), (X, (2.5,)), method="twice")
class MethodsOfItsOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def helper(self, x: Tensor, items: List[float], by: int = 2) -> Tensor:
        items.append(1.5)
        return x * by

    @torch.jit.export
    def encode(self, x: Tensor, items: List[float]) -> Tuple[Tensor, List[float]]:
        y = self.helper(x, items) + self.helper(x, items, by=4)
        return self.inner(y), items

    @torch.jit.export
    def twice(self, x: Tensor, items: List[float]):
        a = self.encode(x, items)
        b = self.encode(x, items)
        return a, b, items

    @torch.jit.unused
    def never(self, x: Tensor) -> Tensor:
        return x.numpy()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < -100:
            return self.never(x)
        return self.inner(x) * 2


@MODULES.module((X, X), (X, X, 1), (X, X, 1, "c"), (X, X, 2, "", [1], False, 1.0, X, (3, 4), 2.0))
class NamesAndDefaults(nn.Module):
    def forward(
        self, input: Tensor, v1: Tensor, block1: int = 0, n1: str = "it's",
        list: Optional[List[int]] = None, wrap: bool = True, int_: float = 0.1,
        y: Optional[Tensor] = None, len: Tuple[int, int] = (1, 2), inf: float = float("inf"),
    ):  # fmt: skip
        k0 = input + v1
        v2 = k0 * len[0]
        body = int_
        if list is not None:
            v2 = v2 + list[0]
        for i in range(block1):
            v2 = v2 + i
        return v2 if y is None else y, k0, n1, wrap, body, len, inf, list is None


def pre(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] + 1,)


def pre_more(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] * 3,)


def post(self, args: Tuple[Tensor], output: Tensor) -> Tensor:
    return output * args[0]


@MODULES.module((X,))
def hooks_on_submodules():
    inner, hooked = Scale(2.0), Scale(4.0)
    inner.register_forward_pre_hook(pre)
    inner.register_forward_pre_hook(pre_more)
    inner.register_forward_hook(post)
    hooked.register_forward_hook(post)
    return nn.Sequential(inner, nn.ReLU(), hooked, Scale(3.0))


# State


@MODULES.module((X,), (X,), (X + 1,))
class StateInBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("none", None)
        self.register_buffer("passing", torch.ones(1), persistent=False)
        self.plain = torch.ones(3)

    def forward(self, x: Tensor):
        self.seen = self.seen + x.sum(0)
        self.count += 1
        self.plain = self.plain * 2
        self.passing[0] = 5.0
        return self.seen, self.count, self.plain, self.passing, self.none is None


@MODULES.module((2,), (3,), (4,))
class StateInAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.x, self.flag, self.text = 1, 0.5, False, "a"
        self.items = [1, 2]
        self.table = {"a": 1}
        self.pair = (1, "x")
        self.maybe = torch.jit.Attribute(None, Optional[int])
        self.rows: List[List[int]] = [[1], [2]]
        self.parts: List[Tensor] = [torch.zeros(1)]
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.mode = Mode.FAST

    @property
    def double(self) -> float:
        return self.x * 2

    @double.setter
    def double(self, value: float) -> None:
        self.x = value / 2

    def forward(self, n: int):
        self.double = self.double + 1
        self.n += n
        self.x *= 2
        self.flag = not self.flag
        self.text += str(n)
        self.items.append(n)
        self.table[str(n)] = n
        self.pair = (n, self.text)
        self.rows[0].append(n)
        self.parts.append(self.parts[-1] + n)
        if self.maybe is None:
            self.maybe = n
        before = self.mode.value
        self.mode = Mode.SLOW
        return (
            (self.n, self.x, self.flag, self.text, self.items, self.table, self.pair, self.maybe),
            (self.rows, self.parts, torch.zeros(1, dtype=self.dtype, device=self.device)),
            (before, self.mode == Mode.SLOW, self.mode.value),
        )


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


@MODULES.module((X,), (X + 1,))
class InstanceOfManyAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linked = Linked(torch.ones(3) * 2, {"first": torch.zeros(1)})
        self.again = self.linked

    def forward(self, x: Tensor):
        y = self.linked.use(x)
        same = self.linked is self.again
        return (
            y,
            self.linked.table,
            self.again.maybe,
            self.linked.pair,
            self.linked.counter.count,
            same,
        )


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


@MODULES.module((X, 0, "a"), (X, 1, "b"), (X, 2, "a"), (X, -1, "a"), (X, 0, "c"))
class InterfaceChosenAtRunTime(nn.Module):
    layer: Layer

    def __init__(self):
        super().__init__()
        self.layer = Adds(1.0)
        self.layers = nn.ModuleList([Adds(2.0), Multiplies(3.0)])
        self.table = nn.ModuleDict({"a": Adds(2.0), "b": Multiplies(3.0)})

    def forward(self, x: Tensor, i: int, key: str):
        one: Layer = self.layers[i]
        other: Layer = self.table[key]
        x = self.layer.forward(x) + self.layer.weight_sum(3)
        return one.forward(x), one.weight_sum(i), other.forward(x)
