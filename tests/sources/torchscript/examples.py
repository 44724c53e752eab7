"""Programs of TorchScript as examples, how they are saved, and how two runs are compared."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError
from tests.oracle.by_hand import same_bits

Call = tuple[Any, ...]


@dataclass(frozen=True)
class Example:
    """A method of a module in a file, and the arguments of calls that are made one after another.

    Attributes:
        calls: for each call the positional arguments.
        module: the name of the submodule that is called; the whole if empty.
        method: what is called.
        fresh: whether it also runs where none of the classes it was made from exist.
    """

    calls: tuple[Call, ...]
    module: str = ""
    method: str = "forward"
    fresh: bool = True

    def of(self, whole: nn.Module) -> Callable[..., Any]:
        """Return what is called in the module of the file."""
        module = getattr(whole, self.module) if self.module else whole
        return module if self.method == "forward" else getattr(module, self.method)


@dataclass
class Table:
    """Functions and modules, as methods and children of one module, and their calls."""

    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    makers: dict[str, Callable[[], nn.Module]] = field(default_factory=dict)
    examples: dict[str, Example] = field(default_factory=dict)

    def function(self, *calls: Call, fresh: bool = True) -> Any:
        """Make the decorated function a method."""

        def add(function: Any) -> Any:
            name = function.__name__
            self.functions[name] = function
            self.examples[name] = Example(calls, method=name, fresh=fresh)
            return function

        return add

    def module(self, *calls: Call, method: str = "forward") -> Any:
        """Make the decorated class, or function that makes a module, a child."""

        def add(maker: Any) -> Any:
            self.makers[maker.__name__] = maker
            self.examples[maker.__name__] = Example(calls, maker.__name__, method)
            return maker

        return add

    def whole(self, only: str = "") -> nn.Module:
        """A module with the methods and children, or one of them."""

        def chosen(members: dict[str, Any]) -> dict[str, Any]:
            return {only: members[only]} if only in members else {} if only else members

        methods = {name: torch.jit.export(one) for name, one in chosen(self.functions).items()}
        kind = type("Whole", (nn.Module,), {"forward": _nothing, **methods})
        kind.__module__ = __name__
        whole: nn.Module = kind()
        for name, make in chosen(self.makers).items():
            torch.manual_seed(0)
            whole.add_module(name, make())
        return whole


def _nothing(self: nn.Module) -> int:
    return 0


@contextmanager
def quietly() -> Any:
    """Without what torch says of TorchScript being old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def program_of(source: str, folder: Path) -> type[nn.Module]:
    """The class ``Program`` of a source, from a file, as TorchScript reads it anew."""
    path = folder / "program.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("generated_program", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated_program"] = module
    with quietly():
        spec.loader.exec_module(module)
    found: type[nn.Module] = module.Program
    return found


def saved(module: nn.Module, path: Path) -> Path:
    """Script the module, unless it is scripted, and save it."""
    with quietly():
        if not isinstance(module, torch.jit.ScriptModule):
            module = torch.jit.script(module.eval())
        module.save(str(path))
    return path


@dataclass(frozen=True)
class Outcome:
    """What a call did: its result, or the error it ended with."""

    result: Any = None
    error: BaseException | None = None


def outcome(function: Callable[..., Any], arguments: Call) -> Outcome:
    """Call on copies of the arguments, always from the same random state."""
    given = copy.deepcopy(arguments)
    torch.manual_seed(7)
    try:
        with quietly():
            return Outcome(function(*given))
    except Exception as error:  # whatever a program ends with
        return Outcome(error=error)


def difference(theirs: Outcome, ours: Outcome) -> str:
    """In what the second run differs from the first; empty if in nothing."""
    if theirs.error is None and ours.error is None:
        return unlike(theirs.result, ours.result)
    if theirs.error is None or ours.error is None:
        return f"theirs {theirs!r}, ours {ours!r}"
    if isinstance(ours.error, NotImplementedError):
        return f"not interpreted: {ours.error}"
    message = str(ours.error.args[0]) if ours.error.args else ""
    raised = message.strip().partition("\n")[0]
    known = raised in str(theirs.error) or isinstance(ours.error, LOOSE)
    return "" if known else f"theirs {theirs.error}, ours {ours.error!r}"


# Python's words for what goes wrong in a list, a dict or a division are as good as TorchScript's,
# and so are ours for an argument.
LOOSE = (LookupError, ArithmeticError, ValueError, TypeError, InputError)


def unlike(theirs: Any, ours: Any, place: str = "result") -> str:
    """Where two values differ, in type, structure or any bit; empty where they do not."""
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        return _unlike_tensors(theirs, ours, place)
    if isinstance(theirs, Enum) and isinstance(ours, Enum):
        same = (type(theirs).__name__, theirs.name) == (type(ours).__name__, ours.name)
        return "" if same else f"{place}: {theirs!r} is not {ours!r}"
    if _kind(theirs) != _kind(ours):
        return f"{place}: {_kind(theirs)} is not {_kind(ours)}: {theirs!r}, {ours!r}"
    if isinstance(theirs, dict):
        return unlike(list(theirs), list(ours), f"{place} keys") or unlike(
            list(theirs.values()), list(ours.values()), f"{place} values"
        )
    if isinstance(theirs, list | tuple):
        if len(theirs) != len(ours):
            return f"{place}: {len(theirs)} items are not {len(ours)}: {theirs!r}, {ours!r}"
        found = (
            unlike(a, b, f"{place}[{index}]")
            for index, (a, b) in enumerate(zip(theirs, ours, strict=True))
        )
        return next(filter(None, found), "")
    if isinstance(theirs, float | complex):
        return "" if _same_number(theirs, ours) else f"{place}: {theirs!r} is not {ours!r}"
    return "" if theirs == ours else f"{place}: {theirs!r} is not {ours!r}"


def _kind(value: Any) -> Any:
    fields = getattr(value, "_fields", None)
    return (type(value).__name__, fields) if fields else type(value)


def _same_number(one: complex, other: complex) -> bool:
    if isinstance(one, complex):
        return _same_number(one.real, other.real) and _same_number(one.imag, other.imag)
    if math.isnan(one):
        return math.isnan(other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def _unlike_tensors(theirs: Tensor, ours: Tensor, place: str) -> str:
    for aspect in ("dtype", "shape", "device", "layout", "requires_grad"):
        one, other = getattr(theirs, aspect), getattr(ours, aspect)
        if one != other:
            return f"{place}.{aspect}: {one} is not {other}"
    if theirs.layout is torch.strided and theirs.stride() != ours.stride():
        return f"{place}.stride(): {theirs.stride()} is not {ours.stride()}"
    if theirs.is_quantized:
        scales = (theirs.q_scale(), theirs.q_zero_point()) == (ours.q_scale(), ours.q_zero_point())
        return "" if scales and same_bits(theirs.int_repr(), ours.int_repr()) else place
    if theirs.layout is not torch.strided:
        theirs, ours = theirs.to_dense(), ours.to_dense()
    return "" if same_bits(theirs, ours) else f"{place}: {theirs} is not {ours}"
