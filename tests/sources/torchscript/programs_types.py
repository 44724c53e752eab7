"""Examples of what a value's type decides: isinstance and refinement."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from tests.sources.torchscript.examples import Table
from tests.sources.torchscript.programs_classes import Color, Mode

TYPES = Table()
X = torch.arange(6.0).reshape(2, 3)


ANYTHING = [
    (value,)
    for value in (
        *(1, 2.5, True, "a", None, 1j, torch.ones(2), torch.device("cpu")),
        *([1], [1.5], ["a"], [None, 1], [[1]], [[1.5], [2.5]], [torch.ones(1)], [True]),
        *((1, 2.5), (1, "a"), (1, (2, [3])), ([1], {"a": 1})),
        *({"a": 1}, {"a": 1.5}, {1: "a"}, {"a": [1]}, {"a": torch.ones(1)}),
    )
]


@TYPES.function(*ANYTHING)
def any_is_of_a_plain_type(self, x: Any):
    return (
        (isinstance(x, int), isinstance(x, float), isinstance(x, bool), isinstance(x, complex)),
        (isinstance(x, str), isinstance(x, Tensor), isinstance(x, torch.device), x is None),
        (isinstance(x, list), isinstance(x, tuple)),
    )


@TYPES.function(*ANYTHING)
def any_is_of_a_container_type(self, x: Any):
    found: List[bool] = []
    found.append(torch.jit.isinstance(x, List[int]))
    found.append(torch.jit.isinstance(x, List[float]))
    found.append(torch.jit.isinstance(x, List[Optional[int]]))
    found.append(torch.jit.isinstance(x, Optional[List[str]]))
    found.append(torch.jit.isinstance(x, List[List[int]]))
    found.append(torch.jit.isinstance(x, Dict[str, int]))
    found.append(torch.jit.isinstance(x, Dict[str, Tensor]))
    found.append(torch.jit.isinstance(x, Tuple[int, float]))
    found.append(torch.jit.isinstance(x, Tuple[int, Tuple[int, List[int]]]))
    found.append(torch.jit.isinstance(x, (List[bool], Dict[int, str])))
    return found


@TYPES.function((1,), ("a",), ([1, 2],), ([],), (torch.ones(1),), ({"a": 1},))
def union_members(self, x: Union[int, str, List[int], Tensor, Dict[str, int]]):
    if isinstance(x, int):
        return "int"
    elif isinstance(x, str):
        return x
    elif torch.jit.isinstance(x, List[int]):
        return str(len(x))
    elif isinstance(x, Tensor):
        return "Tensor"
    else:
        return "dict"


class Pair(NamedTuple):
    left: int
    right: Tensor


class Twin(NamedTuple):
    left: int
    right: Tensor


class Couple(NamedTuple):
    left: int
    right: int


class Holder:
    def __init__(self, n: int):
        self.n = n


class Keeper:
    def __init__(self, n: int):
        self.n = n


@TYPES.function(*[(n,) for n in range(9)])
def any_made_inside(self, n: int):
    y = torch.ones(1)
    values: List[Any] = [
        Pair(1, y), Twin(1, y), (1, y), 5, [1.5], "a", [1, 2], Couple(1, 2), (1, 2),
    ]  # fmt: skip
    x = values[n]
    found: List[bool] = []
    found.append(isinstance(x, Pair))
    found.append(isinstance(x, Twin))
    found.append(isinstance(x, Couple))
    found.append(isinstance(x, tuple))
    found.append(isinstance(x, int))
    found.append(torch.jit.isinstance(x, List[int]))
    found.append(torch.jit.isinstance(x, List[Tensor]))
    return found


@TYPES.function((0,), (1,), (2,), (3,), (4,))
def classes_and_enums_are_told_apart(self, n: int):
    values: List[Union[Holder, Keeper, Color, Mode, int]] = [
        Holder(3), Keeper(4), Color.GREEN, Mode.SLOW, 1,
    ]  # fmt: skip
    x = values[n]
    if isinstance(x, Holder):
        return str(x.n)
    elif isinstance(x, Keeper):
        return str(-x.n)
    elif isinstance(x, Color):
        return "Color " + x.name
    elif isinstance(x, Mode):
        return "Mode " + x.value
    else:
        return str(x)
