"""What a caller passes is converted, or refused, as TorchScript does it, for types and values."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn

import hookscope
from hookscope.errors import InputError
from tests.sources.torchscript.examples import Outcome, program_of, quietly, unlike

PLAIN = ["int", "float", "bool", "complex", "str", "Tensor", "torch.device", "torch.dtype", "Any"]
NESTED = [
    *(f"Optional[{one}]" for one in PLAIN if one != "Any"),
    *(f"List[{one}]" for one in PLAIN),
    *("Dict[str, int]", "Dict[int, float]", "Dict[str, Tensor]", "Dict[str, Any]"),
    *("Tuple[int, float]", "Tuple[Tensor]", "Tuple[str, Any]", "Tuple[int, Tuple[bool, Tensor]]"),
    *("Union[int, str]", "Union[float, List[int]]", "Union[int, float, complex]"),
    *("Union[List[str], Dict[str, Tensor], Tensor]", "Optional[List[Optional[int]]]"),
    *("List[List[float]]", "Dict[str, List[Optional[Tensor]]]", "List[Tuple[int, str]]"),
    *("Point", "Optional[Point]", "List[Point]", "Color", "Optional[Color]", "List[Level]"),
    *("Number", "Optional[Number]", "List[Number]"),
]
HEAD = """from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union
import torch
from torch import Tensor, nn
from torch.types import Number

class Point(NamedTuple):
    x: int
    y: float

class Color(Enum):
    RED = 1
    GREEN = 2

class Level(Enum):
    LOW = "low"

class Program(nn.Module):
    def forward(self):
        return 0
"""


class Point(NamedTuple):
    x: int
    y: float


class Other(NamedTuple):
    y: int
    x: float


class Color(Enum):
    RED = 1
    GREEN = 2


class Level(Enum):
    LOW = "low"


@dataclass
class Half:
    def __float__(self) -> float:
        return 0.5


@dataclass
class Three:
    def __index__(self) -> int:
        return 3


SCALARS: list[Any] = [
    *(0, 1, -3, 2**31, 2**63 - 1, 2**63, -(2**63), 2**70, True, False, None),
    *(0.0, 2.0, 2.5, float("nan"), float("inf"), 1e300, 1 + 2j, 3 + 0j),
    *("", "a", "cpu", "meta", "3", b"bytes", b"\xff", bytearray(b"ab"), "\ud800"),
    *(torch.tensor(3), torch.tensor(2.75), torch.tensor(True), torch.tensor(1 + 2j)),
    *(torch.tensor([4]), torch.tensor([1, 2]), torch.tensor([]), torch.ones(2, 2)),
    nn.Parameter(torch.ones(())),
    *(np.int64(3), np.int8(3), np.float64(2.5), np.float32(2.5), np.bool_(True)),
    *(np.complex64(1j), np.array(3), np.array(2.5), np.array([1, 2]), np.str_("a")),
    *(torch.device("cpu"), torch.float32, torch.int8, torch.strided, torch.channels_last),
    *(torch.per_tensor_affine, Decimal("1.5"), Fraction(1, 2), Half(), Three(), object(), int, ...),
    *(Color.RED, Color.GREEN, Level.LOW),
]
COLLECTIONS: list[Any] = [
    *([], (), {}, [1], [1, 2], [1.5], [1, 2.5], [True], [None], [1, None], ["a"], ["a", 1]),
    *((1,), (1, 2), (1, 2.5), ("a", 1), ("a", [1]), (1, (True, torch.ones(1))), (torch.ones(2),)),
    *(
        [torch.ones(1), torch.zeros(2)],
        [torch.ones(1), None],
        [torch.tensor(2)],
        [[1], [2.5]],
        [[]],
    ),
    *({"a": 1}, {"a": 1.5}, {1: 2}, {1: 2.5}, {"a": torch.ones(1)}, {"a": [None]}, {"a": None}),
    *({"a": 1, 2: 3}, {"a": 1, "b": "c"}, OrderedDict(a=1, b=2), {1.5: 1}, {True: 2}),
    *({"a": [torch.ones(1), None]}, [(1, "a")], [(1, 2)], range(3), {1, 2}, torch.Size([1, 2])),
    *(Point(1, 2.5), Point(1, 2), Other(1, 2.5), [Point(1, 2.0), (1, 2)], [Level.LOW], [Color.RED]),
    *(np.arange(3.0), iter([1, 2]), (n for n in (1, 2)), "ab", [2**63], [3, Three()], [Half()]),
]


def pair_of(types: list[str], folder: Path) -> tuple[Any, Any]:
    """A file with a method ``m0``, ``m1``, ... for each type, as PyTorch opens it and as we do."""
    methods = [
        f"    @torch.jit.export\n    def m{number}(self, x: {one}):\n        return x\n"
        for number, one in enumerate(types)
    ]
    file = folder / "model.pt"
    with quietly():
        torch.jit.script(program_of(HEAD + "\n".join(methods), folder)()).save(str(file))
        return torch.jit.load(file), hookscope.load_model(file).module


def result_of(function: Any, value: Any) -> Outcome:
    try:
        return Outcome(function(value))
    except Exception as error:
        return Outcome(error=error)


def disagreement(pair: tuple[Any, Any], name: str, value: Any) -> str:
    """How what the two do with a value differs; empty if they agree."""
    value = list(value) if hasattr(value, "__next__") else value  # two are to go through it
    theirs, ours = (result_of(getattr(one, name), value) for one in pair)
    if theirs.error is None and ours.error is None:
        return unlike(theirs.result, ours.result)
    if theirs.error is None or ours.error is None:
        if "undefined Tensor" in str(theirs.error):
            return ""  # None is taken for a tensor, but in a tuple it cannot be returned
        return f"{theirs!r} is not {ours!r}"
    refused = isinstance(ours.error, InputError) and isinstance(ours.error, RuntimeError)
    return "" if refused else f"{ours.error!r} is no refusal"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return pair_of([*PLAIN, *NESTED], tmp_path_factory.mktemp("types"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("number", "static"), list(enumerate([*PLAIN, *NESTED])))
def test_a_value_is_converted_or_refused_as_torchscript_does(
    pair: tuple[Any, Any], number: int, static: str
) -> None:
    found = [
        f"{value!r}: {text}"
        for value in (*SCALARS, *COLLECTIONS)
        if (text := disagreement(pair, f"m{number}", value))
    ]
    assert not found, f"{static}: " + "\n".join(found)


@st.composite
def types(draw: Any, depth: int = 2) -> str:
    """A random type, as an annotation."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return str(draw(st.sampled_from([*PLAIN, "Point", "Color", "Number"])))
    inner = types(depth - 1)
    kind = draw(st.sampled_from(["Optional", "List", "Dict", "Tuple", "Union"]))
    parts = [draw(inner) for _ in range({"Optional": 1, "List": 1}.get(kind, 2))]
    if kind == "Dict":
        parts[0] = draw(st.sampled_from(["str", "int", "float", "bool"]))
    return f"{kind}[{', '.join(parts)}]"


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(static=types())
def test_values_of_any_type_are_converted_or_refused_as_torchscript_does(
    tmp_path_factory: pytest.TempPathFactory, static: str
) -> None:
    try:
        pair = pair_of([static], tmp_path_factory.getbasetemp())
    except (RuntimeError, hookscope.HookscopeError):
        reject()  # not every such text is a type of TorchScript
    for value in itertools.chain(SCALARS, COLLECTIONS):
        text = disagreement(pair, "m0", value)
        assert not text, f"{static} with {value!r}: {text}"
