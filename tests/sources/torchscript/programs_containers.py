"""Examples of lists, dicts, tuples, optional values, and of tensors that are changed in place."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from collections import OrderedDict
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from tests.sources.torchscript.examples import Table

CONTAINERS = Table()
X = torch.arange(6.0).reshape(2, 3)
N = torch.arange(-3, 3)


@CONTAINERS.function(([3, 1, 2], 5), ([], 0))
def list_grows(self, items: List[int], more: int):
    items.append(more)
    items.extend([more + 1, more])
    items.insert(0, 7)
    items.insert(-1, 8)
    items.insert(-100, 10)
    other = items
    items *= 2
    items += [more]
    third = items + [1]
    third.append(0)
    items[0] += 4
    items.reverse()
    return items, other, third, items is other, items is third, len(items)


@CONTAINERS.function((X,))
def parts_of_a_tensor_are_a_list(self, x: Tensor):
    parts, rows = x.chunk(2), x.unbind(0)
    parts.append(x)
    rows.extend(parts)
    return parts, rows, len(rows)


@CONTAINERS.function(([3, 1, 2], 0), ([3, 1, 2], -1), ([3, 1, 2], 3), ([3, 1, 2], -4), ([], 0))
def list_shrinks(self, items: List[int], place: int):
    items[place] = 9
    found = items.pop(place)
    last = items.pop()
    del items[0]
    left = items.copy()
    items.clear()
    return items, found, last, left


@CONTAINERS.function(([[1], [2, 3]],), ([[1]],))
def lists_in_lists(self, rows: List[List[int]]):
    row = rows[0]
    row.append(4)
    other = rows.copy()
    other.append(row)
    other[1][0] = 8
    first, second = rows
    return rows, other, other[0] is other[-1], rows[:1][0] is row, first, second


@CONTAINERS.function(({1: [1.5], 2: []},), ({},))
def dicts_of_lists(self, table: Dict[int, List[float]]):
    table.setdefault(3, [1.0]).append(2.5)
    table[1] = table.get(1, [0.0]) + [1.0]
    keys = sorted(table.keys())
    found: Dict[str, Dict[int, List[float]]] = {}
    for k in keys:
        found[str(k)] = {k: table[k]}
    found["c"] = found["1"]
    found["c"][7] = [1.0, 2.0]
    del table[3]
    last = table.popitem() if len(table) > 1 else (0, [0.0])
    ordered: Dict[str, int] = OrderedDict([("b", 1), ("a", 2)])
    nothing: Tuple[()] = ()
    return table, found, keys, last, found["1"] is found["c"], ordered, nothing


class Pair(NamedTuple):
    left: int
    right: Tensor


class Nested(NamedTuple):
    pair: Pair
    many: List[Pair]
    table: Dict[str, Pair]
    label: Optional[str] = None
    names: List[str] = ["a", "b"]


def with_left(p: Pair, left: int) -> Pair:
    return Pair(left, p.right)


@CONTAINERS.function((Pair(3, X),))
def named_tuples(self, p: Pair):
    left, right = p
    q = Nested(p, [p, Pair(left=2, right=right + 1)], {"p": p})
    r = Nested(p, [p], {"z": p}, "label", ["c"])
    s = with_left(p, 5)
    return p, p[0], p[0:1], len(p), q, q.many[1].right, q.table["p"].left, r.label, r, s


@CONTAINERS.function((X,))
def unpacked(self, x: Tensor):
    first, *rest = (1, 2.5, "c")
    a, b = x.unbind(0)
    c, (d, e) = 1, (2, 3)
    f, g = x.chunk(2, 0)
    (p, q), r = (c, d), [d, e]
    r[0] *= 2
    return first, rest[0], a, b, c + d + e, f, g, p, q, r


@CONTAINERS.function((True,), (False,))
def optional_in_a_loop(self, flag: bool):
    found: Optional[Tensor] = None
    for i in range(3):
        if found is None:
            if flag:
                found = torch.ones(1) * i
        else:
            found = found + i
    return found


@CONTAINERS.function((None, [1, None, 3]), (X, []))
def optionals(self, x: Optional[Tensor], items: List[Optional[int]]):
    total = 0
    for item in items:
        if item is not None:
            total += item
    items.append(None)
    if isinstance(x, Tensor):
        x = x + 1
    assert x is not None
    return x, total, items


def kind_of(n: Union[int, float, complex]) -> str:
    if isinstance(n, int):
        return "int"
    elif isinstance(n, float):
        return "float"
    else:
        return "complex"


@CONTAINERS.function(*[(torch.tensor([value]),) for value in (3, 2.5, 1 + 2j, -(2**62))])
def items_of_any_kind(self, x: Tensor):
    found: List[Union[int, float, complex]] = []
    ints = 0
    for i in range(x.shape[0]):
        found.append(x[i].item())
    for one in found:
        if isinstance(one, int):
            ints += one
    return kind_of(x.item()), found, ints


@CONTAINERS.function((X,))
def changed_in_place(self, x: Tensor):
    y = x
    x += 1
    x *= 2
    x -= 0.5
    x /= 3
    y.relu_().clamp_(max=4.0)
    z = x.view(-1)
    z.add_(1)
    z[0] = 100.0
    x[1, 2] = -1
    x[:, 0] = torch.tensor([7.0, 8.0])
    x[x > 8] = 0.5
    x[torch.tensor([0, 1]), 2] = 4.0
    x[..., -1] *= 2
    views: List[Tensor] = []
    for i in range(2):
        x[i] = x[i] * 2
        views.append(x[i])
    torch.mul(x, 2, out=x)
    return x, y, z, x is y, views


@CONTAINERS.function((3,), (5,))
def dtype_chosen_at_run_time(self, n: int):
    dtype = torch.float64 if n > 3 else torch.int32
    return torch.zeros(n, dtype=dtype), dtype == torch.float64, dtype


@CONTAINERS.function((X,), (X[0],), (N,), (X.double(),), (X.half(),))
def floats_of_a_tensor(self, x: Tensor):
    a: List[List[float]] = x.tolist()
    b: List[float] = x[0].tolist()
    c: float = x[0, 0].tolist()
    return a, b, c


@CONTAINERS.function((N,), (X,), (N[:0],), (N > 0,))
def ints_of_a_tensor(self, x: Tensor):
    a: List[int] = x.tolist()
    return a


@CONTAINERS.function((torch.device("cpu"), torch.float64), (torch.device("meta"), torch.int32))
def devices_and_dtypes(self, d: torch.device, kind: torch.dtype):
    e = torch.zeros(2, device=d, dtype=kind)
    if kind == torch.float64:
        e = e + 1.5
    return d.type, d.index, d == torch.device("cpu"), e.device == d, str(d), e.is_meta, e.dtype


@CONTAINERS.function((7,))
def generators_of_numbers(self, seed: int):
    g = torch.Generator()
    g.manual_seed(seed)
    return torch.rand(2, generator=g), torch.randint(0, 9, (3,), generator=g), g.initial_seed()
