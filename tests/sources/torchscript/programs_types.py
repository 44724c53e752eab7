"""Examples of what a value's type decides: isinstance, refinement and numbers of no static type."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table

TYPES = Table()


class Pair(NamedTuple):
    a: int
    b: Optional[Tensor]


class Twin(NamedTuple):
    a: int
    b: Optional[Tensor]


class Shade(Enum):
    DARK = 1
    LIGHT = 2


class Tone(Enum):
    LOW = "low"


class Holder:
    def __init__(self, n: int):
        self.n = n


class Keeper:
    def __init__(self, n: int):
        self.n = n


ITEMS = [(torch.tensor(value),) for value in (3, 2.5, True, 0, 1 + 2j, -(2**62))] + [
    (torch.tensor(1.5, dtype=torch.float16),),
    (torch.tensor(7, dtype=torch.uint8),),
]


@TYPES.function(*ITEMS)
def item_in_a_helper(self, x: Tensor):
    return kind_of(x.item()), x.item() is None


def kind_of(n: Union[int, float, complex]) -> str:
    if isinstance(n, int):
        return "int"
    elif isinstance(n, float):
        return "float"
    else:
        return "complex"


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
    found: List[str] = []
    if isinstance(x, int):
        found.append("int")
    if isinstance(x, float):
        found.append("float")
    if isinstance(x, bool):
        found.append("bool")
    if isinstance(x, complex):
        found.append("complex")
    if isinstance(x, str):
        found.append("str")
    if isinstance(x, Tensor):
        found.append("Tensor")
    if isinstance(x, torch.device):
        found.append("device")
    if x is None:
        found.append("None")
    if isinstance(x, list):
        found.append("list")
    if isinstance(x, tuple):
        found.append("tuple")
    return found


@TYPES.function(*ANYTHING)
def any_is_of_a_container_type(self, x: Any):
    found: List[str] = []
    if torch.jit.isinstance(x, List[int]):
        found.append("List[int]")
    if torch.jit.isinstance(x, List[float]):
        found.append("List[float]")
    if torch.jit.isinstance(x, List[Optional[int]]):
        found.append("List[Optional[int]]")
    if torch.jit.isinstance(x, Optional[List[str]]):
        found.append("Optional[List[str]]")
    if torch.jit.isinstance(x, List[List[int]]):
        found.append("List[List[int]]")
    if torch.jit.isinstance(x, Dict[str, int]):
        found.append("Dict[str, int]")
    if torch.jit.isinstance(x, Dict[str, Tensor]):
        found.append("Dict[str, Tensor]")
    if torch.jit.isinstance(x, Tuple[int, float]):
        found.append("Tuple[int, float]")
    if torch.jit.isinstance(x, Tuple[int, Tuple[int, List[int]]]):
        found.append("nested")
    if torch.jit.isinstance(x, (List[bool], Dict[int, str])):
        found.append("several")
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


@TYPES.function((0,), (1,), (2,), (3,), (4,))
def any_made_inside(self, n: int):
    values: List[Any] = [1, 2.5, "a", [1, 2], torch.ones(1)]
    x = values[n]
    if isinstance(x, int):
        return "int"
    if isinstance(x, float):
        return "float"
    if torch.jit.isinstance(x, List[int]):
        return "ints"
    if isinstance(x, str):
        return "str"
    return "else"


@TYPES.function((True,), (False,))
def empty_lists_keep_their_type(self, first: bool):
    a: List[int] = []
    x: Any = a
    return torch.jit.isinstance(x, List[int]), torch.jit.isinstance(x, List[Tensor])


@TYPES.function((0,), (1,), (2,), (3,))
def named_tuples_are_told_apart(self, n: int):
    values: List[Any] = [Pair(1, None), Twin(1, torch.ones(1)), (1, None), 5]
    x = values[n]
    found: List[str] = []
    if isinstance(x, Pair):
        found.append("Pair")
    if isinstance(x, Twin):
        found.append("Twin")
    if isinstance(x, tuple):
        found.append("tuple")
    return found


@TYPES.function((0,), (1,), (2,))
def enums_are_told_apart(self, n: int):
    values: List[Union[Shade, Tone, int]] = [Shade.LIGHT, Tone.LOW, 1]
    x = values[n]
    if isinstance(x, Shade):
        return "Shade " + x.name
    elif isinstance(x, Tone):
        return "Tone " + x.value
    else:
        return str(x)


@TYPES.function((Shade.DARK,), (Shade.LIGHT,), fresh=False)
def enum_as_an_argument(self, x: Shade):
    if x == Shade.LIGHT:
        return "light", x
    return x.name, Shade.DARK


@TYPES.function((0,), (1,), (2,))
def classes_are_told_apart(self, n: int):
    values: List[Union[Holder, Keeper, int]] = [Holder(3), Keeper(4), 5]
    x = values[n]
    if isinstance(x, Holder):
        return x.n
    elif isinstance(x, Keeper):
        return -x.n
    else:
        return 100


@TYPES.function((None,), (torch.ones(2),))
def optional_tensor_refined(self, x: Optional[Tensor]):
    if isinstance(x, Tensor):
        return x + 1
    return torch.zeros(1)


@TYPES.function(*[one for one in ITEMS if not one[0].is_complex()])
def item_arithmetic_of_any_kind(self, x: Tensor):
    n = x.item()
    return n + 1, n * 2.5, n - n, -n, n == n, n != 3, float(abs(x).item()) / 2


@TYPES.function((torch.tensor(3),), (torch.tensor(2.5),), (torch.tensor(-4),))
def item_compared(self, x: Tensor):
    n = x.item()
    return (
        n > 2,
        n < 2.5,
        n >= n,
        int(n),
        float(n),
        bool(n),
        str(n),
        f"{n} items",
        torch.full((2,), n),
    )


@TYPES.function((torch.tensor([3, 4]),))
def items_collected(self, x: Tensor):
    found: List[Union[int, float, complex]] = []
    for i in range(x.shape[0]):
        found.append(x[i].item())
    ints = 0
    for one in found:
        if isinstance(one, int):
            ints += one
    return found, ints


@TYPES.function((torch.tensor(3), torch.tensor(2.75), torch.tensor(True)))
def tensors_for_numbers(self, n: int, f: float, b: bool):
    return n + 1, f * 2, not b, isinstance(n, int)


@TYPES.function(([torch.tensor(3), 4], {"a": torch.tensor(1)}, (torch.tensor(2), "b")))
def tensors_for_numbers_in_containers(self, a: List[int], b: Dict[str, float], c: Tuple[int, str]):
    return a, b, c


@TYPES.function((2.5,), (2,), ("2",), (torch.tensor([1, 2]),), (None,))
def what_is_no_int(self, n: int):
    return n * 2
