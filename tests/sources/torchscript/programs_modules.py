"""Examples of modules in scripted code: containers, attributes, methods, training, odd names."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from collections import OrderedDict
from typing import Dict, Final, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table

MODULES = Table()
X = torch.arange(6.0).reshape(2, 3)


class Scale(nn.Module):
    def __init__(self, n: float = 2.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), n))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


@MODULES.module((X,))
class ListOfModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.ModuleList([Scale(1.5), nn.ReLU(), Scale(3.0)])

    def forward(self, x: Tensor):
        for item in self.items:
            x = item(x)
        for i, item in enumerate(self.items):
            x = item(x) + i
        return x, self.items[0](x), self.items[-1](x), len(self.items)


@MODULES.module((X,))
class DictOfModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.ModuleDict({"a-b": Scale(1.5), "0": Scale(3.0), "x y": nn.Tanh()})

    def forward(self, x: Tensor):
        names: List[str] = []
        for name, item in self.table.items():
            x = item(x)
            names.append(name)
        for item in self.table.values():
            x = item(x)
        for name in self.table.keys():
            names.append(name)
        return x, names, self.table["a-b"](x), "0" in self.table, len(self.table)


@MODULES.module((X,))
class Sequentials(nn.Module):
    def __init__(self):
        super().__init__()
        inner = nn.Sequential(
            OrderedDict([("1x1", Scale(2.0)), ("2", nn.ReLU()), ("a b", Scale(0.1))])
        )
        self.whole = nn.Sequential(Scale(1.0), inner, nn.Sequential())

    def forward(self, x: Tensor):
        y = self.whole(x)
        for item in self.whole:
            x = item(x)
        return x, y, self.whole[0](x), self.whole[1][0](x), len(self.whole[1])


@MODULES.module((X,))
class NestedContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleList(
            [nn.ModuleList([Scale(0.5 + i + j) for j in range(2)]) for i in range(2)]
        )
        self.table = nn.ModuleDict({"x": nn.ModuleDict({"y": Scale(4.0)})})

    def forward(self, x: Tensor):
        for row in self.rows:
            for item in row:
                x = x + item(x)
        return x, self.table["x"]["y"](x), self.rows[1][0](x)


@MODULES.module((X,))
class ZippedModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList([Scale(1.0), Scale(2.0)])
        self.b = nn.ModuleList([nn.ReLU(), nn.Sigmoid()])

    def forward(self, x: Tensor):
        found: List[Tensor] = []
        for i, (a, b) in enumerate(zip(self.a, self.b)):
            x = b(a(x))
            found.append(x * i)
        return found, x


@MODULES.module((X,))
class MethodsOfItsOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 3

    def helper(self, x: Tensor, items: List[int], by: int = 2) -> Tensor:
        items.append(by)
        return x * by + self.n

    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return self.helper(x, [])

    def forward(self, x: Tensor):
        items: List[int] = []
        y = self.helper(x, items) + self.helper(x, items, by=4)
        return self.other(y), items


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    @torch.jit.export
    def encode(self, x: Tensor, items: List[float]) -> Tuple[Tensor, List[float]]:
        items.append(1.5)
        return self.inner(x), items

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class EncoderTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    @torch.jit.export
    def encode(self, x: Tensor, items: List[float]) -> Tuple[Tensor, List[float]]:
        items.append(1.5)
        return self.inner(x), items

    @torch.jit.export
    def twice(self, x: Tensor, items: List[float]):
        a = self.encode(x, items)
        b = self.encode(x, items)
        return a, b, items

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


MODULES.add("exported_method", lambda: Encoder(), (X, [1]), (X, (2.5,)), method="encode")
MODULES.add("exported_method_that_shares_a_list", lambda: EncoderTwice(), (X, [1]), method="twice")


@MODULES.module((X,))
class ReadsFromItsChildren(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.deep = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor):
        return (
            self.inner.weight * 2,
            self.inner.bias,
            self.norm.running_mean,
            self.norm.eps,
            self.inner.in_features,
            self.deep[0].weight,
            x @ self.inner.weight.t(),
            self.norm.training,
        )


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
        self.n = 1
        self.x = 0.5
        self.flag = False
        self.text = "a"
        self.items = [1, 2]
        self.table = {"a": 1}
        self.pair = (1, "x")
        self.maybe = torch.jit.Attribute(None, Optional[int])
        self.rows: List[List[int]] = [[1], [2]]
        self.parts: List[Tensor] = [torch.zeros(1)]
        self.device = torch.device("cpu")
        self.dtype = torch.float64

    def forward(self, n: int):
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
        return (
            self.n,
            self.x,
            self.flag,
            self.text,
            self.items,
            self.table,
            self.pair,
            self.maybe,
            self.rows,
            self.parts,
            torch.zeros(1, dtype=self.dtype, device=self.device),
        )


@MODULES.module((X,))
class FinalConstants(nn.Module):
    n: Final[int]
    names: Final[List[str]]
    pair: Final[Tuple[int, float]]
    __constants__ = ["flag", "mode"]

    def __init__(self):
        super().__init__()
        self.n, self.names, self.pair, self.flag, self.mode = 3, ["a", "b"], (1, 2.5), True, "max"

    def forward(self, x: Tensor):
        if self.flag:
            x = x * self.n
        if self.mode == "min":
            x = x - 1
        return x, self.names, self.pair, self.mode


@MODULES.module((X,))
class TrainingFlag(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor):
        if self.training:
            x = x + 1
        return self.norm(self.dropout(x)), self.training, self.dropout.training


@MODULES.module((X,))
class NoneInPlaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.down: Optional[nn.Module] = None
        self.register_parameter("bias", None)
        self.linear = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor):
        if self.down is not None:
            x = self.down(x)
        if self.bias is not None:
            x = x + self.bias
        return self.linear(x), self.linear.bias is None


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


@MODULES.module((X, X + 1), (X, X, 3), (X, X, 4, [1, 2], 0.5))
class NamesOfArguments(nn.Module):
    def forward(
        self,
        input: Tensor,
        v1: Tensor,
        len: int = 2,
        list: Optional[List[int]] = None,
        self_: float = 1.5,
    ):
        k0 = input + v1
        v2 = k0 * len
        body = self_
        if list is not None:
            v2 = v2 + list[0]
        return v2, k0, body, list is None


@MODULES.module((X,), (X, 1), (X, 1, "c"))
class MoreNamesOfArguments(nn.Module):
    def forward(
        self,
        run: Tensor,
        block1: int = 0,
        n1: str = "a",
        _: int = 4,
        wrap: bool = True,
        int_: float = 0.5,
    ):
        print_ = 2
        for i in range(block1):
            run = run + i
        return run * print_, n1, _, wrap, int_


@MODULES.module((X,), (X, None, -1.0), (X, X, 2.0, True))
class Defaults(nn.Module):
    def forward(
        self,
        x: Tensor,
        y: Optional[Tensor] = None,
        scale: float = 0.1,
        flag: bool = False,
        text: str = "it's",
        sizes: Tuple[int, int] = (1, 2),
        inf: float = float("inf"),
    ):
        return x * scale if y is None else x + y, flag, text, sizes, inf


@MODULES.module((X,))
class HasAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.there = 3

    def forward(self, x: Tensor):
        if hasattr(self, "there"):
            x = x + self.there
        if hasattr(self, "not_there"):
            x = x + self.not_there
        return x, getattr(self, "there"), getattr(self, "missing", 7)


@MODULES.module((X,))
class Overloads(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Overloaded()

    def forward(self, x: Tensor):
        return self.inner(x), self.inner(3), self.inner.kind(1), self.inner.kind("a")


class Overloaded(nn.Module):
    @torch.jit._overload_method  # noqa: F811
    def forward(self, x: Tensor) -> Tensor:
        pass

    @torch.jit._overload_method  # noqa: F811
    def forward(self, x: int) -> int:  # noqa: F811
        pass

    def forward(self, x):  # noqa: F811
        return x * 2

    @torch.jit._overload_method  # noqa: F811
    def kind(self, x: int) -> int:
        pass

    @torch.jit._overload_method  # noqa: F811
    def kind(self, x: str) -> str:  # noqa: F811
        pass

    def kind(self, x):  # noqa: F811
        return x + x


@MODULES.module((X,))
class UnusedMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    @torch.jit.unused
    def never(self, x: Tensor) -> Tensor:
        return x.numpy()

    def forward(self, x: Tensor):
        if x.sum() < 0:
            return self.never(x)
        return self.linear(x)


def pre(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] + 1,)


def pre_more(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] * 3,)


def post(self, args: Tuple[Tensor], output: Tensor) -> Tensor:
    return output * args[0]


@MODULES.module((X,))
def hooks_on_a_submodule():
    inner = Scale(2.0)
    inner.register_forward_pre_hook(pre)
    inner.register_forward_pre_hook(pre_more)
    inner.register_forward_hook(post)
    return nn.Sequential(inner, nn.ReLU())


@MODULES.module((X,))
def hook_on_one_of_two_of_a_class():
    hooked = Scale(2.0)
    hooked.register_forward_hook(post)
    return nn.Sequential(hooked, Scale(3.0))


@MODULES.module((X,))
def sequential_alone():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@MODULES.module((torch.randn(2, 3, 8, 8, generator=torch.manual_seed(3)),))
class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding="same")
        self.d = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.n = nn.BatchNorm2d(2)
        self.g = nn.GroupNorm(1, 2)
        self.p = nn.AdaptiveAvgPool2d(2)
        self.r = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor):
        return self.p(self.r(self.g(self.n(self.d(self.c(x))))))


@MODULES.module((X,))
class ParameterContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3) * i) for i in range(3)])

    def forward(self, x: Tensor):
        for w in self.weights:
            x = x + w
        return x, self.weights[1]


@MODULES.module(({"a": X, "b": X + 1},))
class DictInDictOut(nn.Module):
    def forward(self, given: Dict[str, Tensor]) -> Dict[str, Tensor]:
        given["c"] = given["a"] + given["b"]
        return given


@MODULES.module(([X, X + 1],))
class ListInListOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Appends()

    def forward(self, given: List[Tensor]) -> List[Tensor]:
        self.inner(given)
        return given


class Appends(nn.Module):
    def forward(self, given: List[Tensor]):
        given.append(given[0])
