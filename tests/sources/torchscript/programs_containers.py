"""Examples of lists, dicts, tuples, named tuples, Optional, Union, Any and isinstance."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import math
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table

CONTAINERS = Table()
X = torch.arange(6.0).reshape(2, 3)


@CONTAINERS.function(([3, 1, 2], 5), ([], 0))
def list_grows(self, items: list[int], more: int):
    items.append(more)
    items.extend([more + 1, more])
    items.insert(0, 7)
    items.insert(-1, 8)
    items.insert(100, 9)
    items.insert(-100, 10)
    return items, len(items)


@CONTAINERS.function(([3, 1, 2], 0), ([3, 1, 2], -1), ([3, 1, 2], 3), ([3, 1, 2], -4), ([], 0))
def list_pop(self, items: list[int], place: int):
    found = items.pop(place)
    last = items.pop()
    return items, found, last


@CONTAINERS.function(([3, 1, 2, 1], 1), ([3], 1))
def list_remove(self, items: list[int], what: int):
    items.remove(what)
    return items


@CONTAINERS.function(([3, 1, 2, 1], 1), ([3], 1), ([], 1))
def list_index(self, items: list[int], what: int):
    return items.index(what)


@CONTAINERS.function(([3, 1, 2, 1], 1), ([3], 1), ([], 1))
def list_questions(self, items: list[int], what: int):
    return items.count(what), what in items, what not in items, len(items), bool(len(items))


@CONTAINERS.function(([3, 1, 2, 1],), ([],), ([2**62, -(2**62)],))
def list_sort(self, items: list[int]):
    up = sorted(items)
    items.sort()
    first = items.copy()
    items.sort(reverse=True)
    second = items.copy()
    items.reverse()
    return items, first, second, up


@CONTAINERS.function((["b", "", "a", "é", "Z"],))
def list_sort_of_strings(self, items: list[str]):
    other = sorted(items)
    items.sort(reverse=True)
    return items, other, "a" in items, items.index("a"), items.count("b")


@CONTAINERS.function(
    ([1.5, -0.0, 0.0, -2.0, math.inf],),
    ([0.0, -0.0],),
    ([0.5, math.nan, -0.0],),
    ([math.nan, 2.0, math.nan, -1.0],),
    ([float(i * 7 % 5) * (-1) ** i for i in range(40)],),  # where PyTorch's sort is not stable
)
def list_sort_of_floats(self, items: list[float]):
    other = sorted(items)
    down = items.copy()
    down.sort(reverse=True)
    items.sort()
    return items, other, down, min(items), max(items), sum(items)


@CONTAINERS.function(([True, False, True],))
def list_sort_of_bools(self, items: list[bool]):
    items.sort()
    return items, any(items), all(items), sum([int(i) for i in items])


@CONTAINERS.function(([math.nan, 1.0], math.nan), ([1.0], 1.0))
def list_with_nan(self, items: list[float], what: float):
    held = [what, what]
    return (
        what in items,
        what in held,
        held == held,
        held != [what],
        items.count(items[0]),
        held.count(what),
    )


@CONTAINERS.function(([math.nan, 1.0],))
def list_index_of_nan(self, items: list[float]):
    return items.index(items[0])


@CONTAINERS.function(([math.nan, 1.0],))
def list_remove_of_nan(self, items: list[float]):
    items.remove(items[0])
    return items


@CONTAINERS.function(
    *[([0, 1, 2, 3, 4, 5], a, b) for a in (0, 2, -2, 9, -9) for b in (0, 4, -1, 9, -9)], ([], 0, 1)
)
def list_slices(self, items: list[int], a: int, b: int):
    return (
        items[a:b],
        items[a:],
        items[:b],
        items[:],
        items[a:b:2],
        items[a::3],
        items[1:-1],
        items[:-2],
    )


@CONTAINERS.function(
    ([0, 1, 2, 3, 4, 5], -1), ([0, 1, 2, 3], -2), ([], -1), ([1, 2], 0), ([1, 2, 3], 5)
)
def list_slice_by_steps(self, items: list[int], step: int):
    return items[::step], items[4:1:step], items[1:4:step], items[-1::step]


@CONTAINERS.function(([0, 1, 2], 0), ([0, 1, 2], -3), ([0, 1, 2], 3), ([0, 1, 2], -4))
def list_item(self, items: list[int], place: int):
    return items[place]


@CONTAINERS.function(([0, 1, 2], 0), ([0, 1, 2], -3), ([0, 1, 2], 3), ([0, 1, 2], -4))
def list_item_assigned(self, items: list[int], place: int):
    items[place] = 9
    items[place] += 1
    return items


@CONTAINERS.function(([0, 1, 2], 1), ([0, 1, 2], -1), ([0, 1, 2], 5))
def list_item_deleted(self, items: list[int], place: int):
    del items[place]
    return items


@CONTAINERS.function(([0, 1], [0, 1]), ([0, 1], [0]), ([], []), ([1], [2]))
def list_comparison(self, a: list[int], b: list[int]):
    return a == b, a != b, [a, b] == [b, a] if False else a == a


@CONTAINERS.function((["a"], ["a"]), (["a"], ["b", "c"]))
def list_comparison_of_strings(self, a: list[str], b: list[str]):
    return a == b, a != b


@CONTAINERS.function(([X, X + 1], [X, X + 1]), ([X], [X, X]))
def list_comparison_of_tensors(self, a: list[Tensor], b: list[Tensor]):
    return a == b, a != b


@CONTAINERS.function(([1, 2], 3), ([1, 2], 0), ([1, 2], -1), ([], 4))
def list_multiplication(self, items: list[int], n: int):
    return items * n, n * items, items + items, [0] * 3, ["x"] * n


@CONTAINERS.function(([1], 2))
def list_multiplied_in_place(self, items: list[int], n: int):
    other = items
    items *= n
    return items, other


@CONTAINERS.function(([1], [2, 3]))
def list_seen_through_two_names(self, items: list[int], more: list[int]):
    other = items
    items += more
    other.append(9)
    third = items + more
    third.append(0)
    items.clear()
    fourth = other
    fourth.append(5)
    return items, other, third, fourth, items is other, items is third


@CONTAINERS.function(([[1], [2, 3]],))
def list_of_lists(self, rows: list[list[int]]):
    row = rows[0]
    row.append(4)
    rows.append(row)
    rows[1][0] = 8
    rows[-1].extend(rows[1])
    return rows, len(rows), rows[0] is rows[2]


@CONTAINERS.function(([[1], [2, 3]],))
def list_copies_are_shallow(self, rows: list[list[int]]):
    other = rows.copy()
    other[0].append(7)
    other.append([0])
    third = list(rows)
    third[1].append(8)
    return rows, other, third, rows[:1][0] is rows[0]


@CONTAINERS.function(([X, X + 1],))
def list_of_tensors(self, parts: list[Tensor]):
    parts.append(parts[0] + parts[1])
    parts[0].add_(1)
    whole = torch.cat(parts, 1)
    a, b, c = parts
    return parts, torch.stack(parts), whole, a, c, parts[1:], len(parts)


@CONTAINERS.function(([torch.tensor(3), torch.tensor(1)],))
def list_sort_of_tensors(self, parts: list[Tensor]):
    parts.sort()
    return parts, sorted(parts)


@CONTAINERS.function(([1, 2, 3],), ([1, 2],))
def list_unpacking(self, items: list[int]):
    a, b, c = items
    return a + b * c


@CONTAINERS.function((4,))
def list_of_tuples(self, n: int):
    pairs = [(i, str(i)) for i in range(n)]
    pairs.append((9, "nine"))
    first = pairs[0]
    a, b = pairs[-1]
    return pairs, first, a, b, len(pairs), pairs[1:3]


@CONTAINERS.function(())
def empty_containers(self):
    a: list[int] = []
    b: dict[str, int] = {}
    c: list[list[str]] = []
    d: dict[int, list[Tensor]] = {}
    e = torch.jit.annotate(List[float], [])
    f: Optional[int] = None
    g: Tuple[()] = ()
    a.append(1)
    c.append(["x"])
    d[3] = []
    d[3].append(torch.ones(1))
    return a, b, c, d, e, f, g, list((1, 2))


# Tuples


@CONTAINERS.function((1, "a", 2.5))
def tuples(self, a: int, b: str, c: float):
    t = (a, b, c)
    x, y, z = t
    u = (x, (y, z))
    p, (q, r) = u
    return t, u, t[0], t[-1], u[1][0], p, q, r, len(t), (a,), t + (5,)


@CONTAINERS.function((1, "a", 2.5))
def tuple_slices(self, a: int, b: str, c: float):
    t = (a, b, c, a, b)
    return t[1:3], t[:2], t[-2:], t[:], t[0:4:2], t[::2], t[1:-1], t[3:1], t[::-1]


@CONTAINERS.function(((1, 2), (1, 2)), ((1, 2), (2, 1)))
def tuple_comparison(self, a: tuple[int, int], b: tuple[int, int]):
    return a == b, a != b, a[0] == b[1]


@CONTAINERS.function(((1, (X, "s")),))
def tuple_of_mixed_types(self, t: tuple[int, tuple[Tensor, str]]):
    n, (x, s) = t
    return x * n, s, t


# Dicts


@CONTAINERS.function(({"b": 1, "a": 2},), ({},))
def dict_views(self, d: dict[str, int]):
    return (
        list(d.keys()),
        list(d.values()),
        list(d.items()),
        len(d),
        "a" in d,
        "z" not in d,
        list(d),
        bool(len(d)),
    )


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({}, "a"))
def dict_get(self, d: dict[str, int], key: str):
    return d.get(key), d.get(key, 7), d.get("none", -1)


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({"b": 1}, "a"))
def dict_item(self, d: dict[str, int], key: str):
    return d[key]


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({"b": 1}, "a"))
def dict_changes(self, d: dict[str, int], key: str):
    d[key] = 5
    d["new"] = 6
    d[key] += 1
    d["b"] = 0
    e = d.copy()
    e["only"] = 1
    d.update({"u": 8, "b": 9})
    return d, e, list(d.keys())


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({"b": 1}, "a"))
def dict_setdefault_bare(self, d: dict[str, int], key: str):
    d.setdefault(key, 11)
    return d


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({"b": 1}, "a"))
def dict_pop(self, d: dict[str, int], key: str):
    one = d.pop(key, 4)
    two = d.pop("b")
    return d, one, two


@CONTAINERS.function(({"b": 1}, "a"))
def dict_pop_of_nothing(self, d: dict[str, int], key: str):
    return d.pop(key)


@CONTAINERS.function(({"b": 1, "a": 2, "c": 3},), ({},))
def dict_popitem(self, d: dict[str, int]):
    return d.popitem(), d


@CONTAINERS.function(({"b": 1, "a": 2}, "a"), ({"b": 1}, "a"))
def dict_deletion(self, d: dict[str, int], key: str):
    del d[key]
    return d


@CONTAINERS.function(({"b": 1, "a": 2},))
def dict_clear(self, d: dict[str, int]):
    other = d
    d.clear()
    return d, other, len(other)


@CONTAINERS.function(())
def dict_of_int_keys(self):
    d = {3: "c", 1: "a"}
    d[2] = "b"
    d[3] = "C"
    del d[1]
    d[1] = "again"
    return d, d[3], 2 in d, list(d.keys()), d.get(9), d.pop(2), d


@CONTAINERS.function(())
def dict_of_float_keys(self):
    d = {0.5: 1, -1.0: 2}
    d[0.25] = 3
    return d, 0.5 in d, d[-1.0], d.get(7.0, 5)


@CONTAINERS.function(())
def dict_of_bool_keys(self):
    d = {True: 1}
    d[False] = 2
    return d, d[True], False in d


@CONTAINERS.function(())
def dict_of_complex_keys(self):
    d = {1j: 1}
    d[2 + 0j] = 2
    return d, d[1j]


@CONTAINERS.function((X,))
def dict_of_tensor_keys(self, x: Tensor):
    y = x + 1
    d = {x: 1, y: 2}
    d[x] = 3
    return d[x], d[y], len(d), x in d, list(d.values())


@CONTAINERS.function((X,))
def dict_of_tensors(self, x: Tensor):
    d = {"x": x}
    d["y"] = d["x"] * 2
    d["x"].add_(1)
    return d, torch.stack(list(d.values()))


@CONTAINERS.function(())
def dict_of_dicts(self):
    d: dict[str, dict[int, list[int]]] = {"a": {1: [1]}}
    d["b"] = {2: [5]}
    d["a"][1].append(3)
    d["c"] = d["a"]
    d["c"][7] = [1, 2]
    return d, d["a"] is d["c"]


@CONTAINERS.function((3,))
def dict_comprehension(self, n: int):
    return {i: str(i) for i in range(n)}, {str(i): i * i for i in [3, 1, 2]}


@CONTAINERS.function(())
def dict_from_pairs(self):
    return dict([("a", 1), ("b", 2)]), dict({"z": 1}), dict(), {k: v for k, v in [(1, 2)]}


@CONTAINERS.function(({"a": 1},))
def dict_seen_through_two_names(self, d: dict[str, int]):
    e = d
    e["b"] = 2
    f = [d, e]
    f[0]["c"] = 3
    return d, e, f


@CONTAINERS.function(())
def ordered_dict(self):
    d: Dict[str, int] = OrderedDict([("b", 1), ("a", 2)])
    return d


@CONTAINERS.function((3,))
def order_after_deletion(self, n: int):
    d = {"a": 1, "b": 2, "c": 3}
    del d["a"]
    d["a"] = 4
    d["b"] = 5
    for i in range(n):
        d[str(i)] = i
    del d["c"]
    return d, [k for k in d], list(d.items())


# Named tuples


class Pair(NamedTuple):
    left: int
    right: Tensor


class Nested(NamedTuple):
    pair: Pair
    many: List[Pair]
    table: Dict[str, Pair]
    label: Optional[str] = None


class WithDefaults(NamedTuple):
    a: int = 3
    b: str = "b"
    c: float = 0.5


@CONTAINERS.function((1, X))
def named_tuple(self, n: int, x: Tensor):
    p = Pair(n, x)
    left, right = p
    return p, p.left, p[0], right, Pair(left=left + 1, right=right * 2), len(p), p[0:1]


@CONTAINERS.function((1, X))
def named_tuples_nested(self, n: int, x: Tensor):
    p = Pair(n, x)
    q = Nested(p, [p, Pair(2, x + 1)], {"p": p})
    return q, q.pair.left, q.many[1].right, q.table["p"], q.label, Nested(p, [p], {"z": p}, "label")


def with_left(p: Pair, left: int) -> Pair:
    return Pair(left, p.right)


@CONTAINERS.function((Pair(3, X),))
def named_tuple_through_a_function(self, p: Pair):
    return with_left(p, 5), with_left(with_left(p, 1), 2).left


@CONTAINERS.module(())
class NamedTupleAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair(3, torch.ones(2))
        self.settings = WithDefaults(7)

    def forward(self):
        self.pair = (self.pair[0] + 1, self.pair[1] * 2)
        return self.pair, self.settings, self.settings[0]


# Optional, Union, Any, isinstance


@CONTAINERS.function((None,), (X,))
def optional_asserted(self, x: Optional[Tensor]):
    assert x is not None
    return x + 1


@CONTAINERS.function((None,), (3,))
def optional_unwrapped(self, n: Optional[int]):
    return torch.jit._unwrap_optional(n) + 1


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


@CONTAINERS.function(([1, None, 3],))
def list_of_optionals(self, items: list[Optional[int]]):
    total = 0
    for item in items:
        if item is not None:
            total += item
    items.append(None)
    return total, items


@CONTAINERS.function(([X],), ([[1]],), ([None],), ((1, "a"),), (([1], X),))
def isinstance_of_containers(self, value: Any):
    return (
        isinstance(value, list),
        isinstance(value, List[Tensor]),
        isinstance(value, List[List[int]]),
        isinstance(value, Tuple[int, str]),
        isinstance(value, Tuple[List[int], Tensor]),
    )


@CONTAINERS.function((1, "x"))
def any_passed_along(self, a: int, b: str):
    c: Any = a
    d: Any = b
    return c, d, (c, d)


@CONTAINERS.function((3,))
def float_given_an_int(self, x: float):
    return x, x / 2, [x], str(x)


@CONTAINERS.function(([3, 4],), ((1.5, 2),))
def floats_given_ints(self, x: list[float]):
    return x, x[0], (x[1], 1)


@CONTAINERS.function((3,), (None,))
def optional_float_given_an_int(self, x: Optional[float] = None):
    return x, "y"


@CONTAINERS.function((2,), (2.5,), (1j,))
def complex_given_other_numbers(self, x: complex):
    return x, x * 2
