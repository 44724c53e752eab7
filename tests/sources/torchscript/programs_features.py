"""Examples of features that few models use: dataclasses, awaitables, custom operators and others."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import math
from dataclasses import dataclass, InitVar
from enum import Enum
from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch._awaits import _Await as Await

from tests.sources.torchscript.examples import Table, quietly

FEATURES = Table()
X = torch.arange(6.0).reshape(2, 3) - 2


@dataclass(order=True)
class Place:
    x: float
    y: float = 1.5
    length: Optional[Tensor] = None

    def __post_init__(self):
        self.length = (torch.tensor(self.x) ** 2 + torch.tensor(self.y) ** 2).sqrt()


@dataclass
class Powered:
    x: float
    power: InitVar[int] = 2
    value: float = 0.0

    def __post_init__(self, power: int):
        self.value = self.x**power


@dataclass
class Loose:
    a: int
    b: int

    def __eq__(self, other: "Loose") -> bool:
        return self.a == other.a


with quietly():  # TorchScript finds no source of what a dataclass is given
    for kind in (Place, Powered, Loose):
        torch.jit.script(kind)


@FEATURES.function((1.0, 2.0), (2.0, 1.0), (1.0, 1.5))
def dataclasses_compared(self, a: float, b: float):
    p, q = Place(a, b), Place(b)
    return p == q, p < q, p <= q, p > q, p >= q, p.length, q.y


@FEATURES.function((3.0, 3))
def dataclass_with_init_vars(self, a: float, n: int):
    return (
        Powered(a, n).value,
        Powered(a).value,
        Loose(n, 1) == Loose(n, 2),
        Loose(1, 1) == Loose(2, 1),
    )


def later(x: Tensor, n: int) -> Tensor:
    return x * n + 1


def several_later(x: Tensor) -> Tuple[Tensor, List[Tensor]]:
    return x * 100, [x * i for i in range(3)]


@FEATURES.function((X,))
def awaited(self, x: Tensor):
    a: Await[Tensor] = torch.jit._awaitable(later, x, 3)
    b = torch.jit._awaitable_nowait(x * 2)
    c = torch.jit._awaitable(several_later, x)
    first = torch.jit._awaitable_wait(a)
    whole, parts = torch.jit._awaitable_wait(c)
    return first + torch.jit._awaitable_wait(b), whole, parts


@FEATURES.function((X,))
def futures_in_a_list(self, x: Tensor):
    futures: List[torch.jit.Future[Tensor]] = []
    for i in range(3):
        futures.append(torch.jit.fork(later, x, i))
    total = torch.zeros_like(x)
    for future in futures:
        total = total + torch.jit.wait(future)
    return total


class Settings(NamedTuple):
    size: int
    scale: float = 2.0
    names: List[str] = ["a", "b"]


@FEATURES.function((3,))
def named_tuple_of_defaults(self, n: int):
    first = Settings(n)
    second = Settings(n, 0.5, ["c"])
    a, b, c = second
    return first, second, first.scale + second.scale, c, len(first), first[0] == second[0]


class Ring:
    def __init__(self, size: int):
        self.size = size
        self.items: List[int] = []
        self.counts: Dict[str, int] = {}

    def __call__(self, n: int) -> int:
        return n % self.size

    def __getitem__(self, n: int) -> int:
        return self.items[self(n)]

    def __setitem__(self, n: int, value: int):
        self.items[self(n)] = value

    def __contains__(self, value: int) -> bool:
        return value in self.items

    def __len__(self) -> int:
        return len(self.items)

    def __iadd__(self, value: int) -> "Ring":
        self.items.append(value)
        return self

    def __bool__(self) -> bool:
        return len(self.items) > 0

    def __str__(self) -> str:
        return "ring of " + str(self.size)


@FEATURES.function((3,), (5,))
def class_of_many_operators(self, n: int):
    ring = Ring(n)
    empty = bool(ring)
    for i in range(n):
        ring += i * i
    ring[n + 1] = 7
    ring.counts["a"] = 1
    ring.counts["a"] += n
    ring.items[0] += 5
    return (
        empty,
        bool(ring),
        ring[1],
        ring[-1],
        7 in ring,
        len(ring),
        ring(12),
        str(ring),
        ring.counts,
        ring.items,
    )


@FEATURES.function(([1, 2, 3], {"b": 2, "a": 1}))
def comprehensions(self, items: List[int], table: Dict[str, int]):
    squares = [n * n for n in items]
    nested = [[a * b for a in items] for b in items]
    turned = {v: k for k, v in table.items()}
    made = {n: [n] * n for n in items}
    pairs = [(k, table[k]) for k in table]
    chosen = [n if n > 1 else -n for n in items]
    return squares, nested, turned, made, pairs, chosen, sum(squares), max(items), min(items)


@FEATURES.function((5,), (-5,), (0,))
def conditions_in_a_chain(self, n: int):
    a = 0 < n < 10
    b = n if n > 0 else (-n if n < 0 else 1)
    c = (n > 0 and 10 // b > 1) or n == -5
    d = not (n > 0 or n < -3)
    x = y = n
    x += 1
    y -= 1
    (p, q), r = (x, y), [x, y]
    r[0] *= 2
    return a, b, c, d, p, q, r, abs(n)


@FEATURES.function(("cpu",), ("meta",))
def devices(self, name: str):
    d = torch.device(name)
    e = torch.zeros(2, device=d)
    return (
        d.type,
        d.index,
        d == torch.device("cpu"),
        e.device == d,
        e.is_meta,
        str(d),
        e.device.type + "!",
    )


@FEATURES.function((torch.float64,), (torch.int32,), (torch.float16,))
def dtypes_given(self, kind: torch.dtype):
    x = torch.zeros(2, dtype=kind)
    if kind == torch.float64:
        x = x + 1.5
    return (
        x,
        x.dtype,
        x.dtype == kind,
        torch.promote_types(kind, torch.float32),
        x.is_floating_point(),
    )


@FEATURES.function((X, 2), (X, -1))
def slices_of_tensors(self, x: Tensor, n: int):
    rows = x[:n]
    z = x[..., None, ::2]
    w = x[:, torch.tensor([0, 2])]
    v = x[x > 0]
    y = x.clone()
    y[0, 1:] = 7
    y[..., 0] += 1
    y[y > 6] = -1
    return rows, z, w, v, y, x[-1][n], x[None, :, 1]


@FEATURES.function((X,))
def slices_kept(self, x: Tensor):
    items = [1, 2, 3, 4, 5]
    text = "abcdef"
    four = (1, "b", 2.5, x)
    return items[1:-1:2], items[::-1], text[-3:], text[::2], four[1:3], four[-1]


@FEATURES.function((X, [1, 2]), (X, []))
def unpacked(self, x: Tensor, sizes: List[int]):
    first, *rest = (1, 2.5, "c")
    a, b = x.unbind(0)
    c, (d, e) = 1, (2, 3)
    return first, rest[0], a, b, c + d + e, torch.zeros(sizes).dim(), x.new_ones(2, len(sizes))


@FEATURES.function((3, "x"), (0, ""))
def unions_by_bars(self, n: int, s: str):
    x: int | str = n
    if n == 0:
        x = s
    y: list[int] | None = None
    if n > 1:
        y = [n]
    return x, y, y is None


@FEATURES.function((0.3, 7), (-2.5, 2), (1e10, 1))
def rounded(self, f: float, n: int):
    return (
        round(f),
        round(f * 1e3),
        math.floor(f),
        math.ceil(f),
        int(f),
        f // 1,
        pow(n, 3),
        n << 2,
        n >> 1,
    )


@FEATURES.function((1 + 2j, 0.5), (-1j, -3.0), (0j, 0.0))
def complex_scalars(self, z: complex, f: float):
    w = complex(f, 2.0)
    return z + w, z * w, z - f, abs(z), z == w, complex(1, 2), [z, w], torch.tensor(z)


@FEATURES.function((3, "a"), (-1, "b"))
def strings_made(self, n: int, s: str):
    return (
        f"{n}-{s}-{n + 1}",
        "{} and {}".format(s, n),
        "%s=%d" % (s, n),
        s + str(1.5),
        s.join(["1", "2"]),
        "a" < s,
        str([n]),
        ord("a"),
        chr(98),
        hex(255),
        len(s),
    )


class Failure(Exception):
    pass


@FEATURES.function((0,), (1,), (2,), (3,))
def failing(self, n: int):
    if n == 1:
        raise Failure("one: " + str(n))
    if n == 2:
        assert n != 2, f"not {n}"
    if n == 3:
        raise KeyError("three")
    return n


@FEATURES.function((7,))
def generators_of_numbers(self, seed: int):
    g = torch.Generator()
    g.manual_seed(seed)
    a = torch.rand(2, generator=g)
    b = torch.randint(0, 9, (3,), generator=g)
    return a, b, g.initial_seed()


@torch.library.custom_op("hookscope_examples::halved", mutates_args=())
def halved_by_library(x: Tensor) -> Tensor:
    return x / 2


@torch.library.custom_op("hookscope_examples::split", mutates_args=())
def split_by_library(x: Tensor, n: int, names: Optional[List[int]] = None) -> List[Tensor]:
    return [part.clone() for part in x.split(n)]


@torch.library.custom_op("hookscope_examples::raised_", mutates_args=("x",))
def raised_by_library(x: Tensor, by: float) -> None:
    x.add_(by)


@FEATURES.function((X,), fresh=False)
def custom_operators(self, x: Tensor):
    y = torch.ops.hookscope_examples.halved(x)
    parts = torch.ops.hookscope_examples.split(y, 1)
    z = x.clone()
    torch.ops.hookscope_examples.raised_(z, 1.5)
    return y, parts, z


class Takes(nn.Module):
    def forward(
        self, items: List[Tensor], table: Dict[str, Tensor], n: int = 3, f: Optional[float] = None
    ):
        items.append(items[0] * n)
        table["new"] = items[-1] + (0.5 if f is None else f)
        return items, table


@FEATURES.module(([X, X + 1], {"a": X}))
class SharesContainersWithAChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.takes = Takes()

    def forward(self, items: List[Tensor], table: Dict[str, Tensor]):
        self.takes(items, table)
        self.takes(items, table, n=2, f=1.0)
        return items, table, len(items)


@FEATURES.function((X,))
def profiled(self, x: Tensor):
    with torch.autograd.profiler.record_function("part") as r:
        y = x * 2
    with torch.no_grad():
        z = y + 1
    with torch.autocast("cpu", enabled=False):
        w = z @ z.t()
    return y, z, w


@FEATURES.function((X,))
def numbers_for_tensors(self, x: Tensor):
    n = x.size(0) * 2
    return (
        torch.add(x, 1, alpha=2),
        torch.full([2, n], 3),
        torch.tensor([[1, 2], [3, 4]]),
        torch.arange(n),
        torch.linspace(0, 1, n),
        torch.as_tensor(n),
        torch.scalar_tensor(2.5),
        x.mul(2).sum().item() + n,
    )


@FEATURES.function(({1: [1.5], 2: []},), ({},))
def dicts_of_lists(self, table: Dict[int, List[float]]):
    table.setdefault(3, [1.0]).append(2.5)
    table[1] = table.get(1, [0.0]) + [1.0]
    keys = sorted(table.keys())
    found: Dict[str, List[float]] = {}
    for k in keys:
        found[str(k)] = table[k]
    del table[3]
    last = table.popitem() if len(table) > 1 else (0, [0.0])
    return table, found, keys, 3 in table, last, list(found.values())


class Tint(Enum):
    RED = "red"
    BLUE = "blue"


@FEATURES.function((0,), (1,))
def enum_keys_and_lists(self, n: int):
    tints = [Tint.RED, Tint.BLUE]
    tint = tints[n]
    names = [one.name for one in tints]
    return (
        tint.name,
        tint.value,
        tint == Tint.RED,
        tint != Tint.RED,
        names,
        [one.value for one in Tint],
    )


@FEATURES.function((X, 2, 3))
def arguments_named_as_helpers(
    self,
    new: Tensor,
    warn: int,
    placed: int,
    Awaitable: int = 1,
    call_as: int = 2,
    is_instance: int = 3,
    raise_error: int = 4,
    uninterpretable: int = 5,
):
    a = torch.jit._awaitable(later, new, warn)
    if warn < 0:
        raise ValueError("never")
    y = torch.zeros(2, 3, device="cpu") + new
    return torch.jit._awaitable_wait(
        a
    ) + y, placed + Awaitable + call_as + is_instance + raise_error + uninterpretable
