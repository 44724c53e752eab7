"""What a specimen is, how a class or a function becomes one, and what specimens are called with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Module(nn.Module):
    """A module made of a function over its children: ``Module(function, name=child)``.

    The function is called with the module and with what the module is called with. It may be left
    out: then the first input is returned as it is.
    """

    def __init__(self, function: Any = lambda self, x: x, **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


@dataclass(frozen=True)
class Specimen:
    """A model, what it is called with, and what is true of it in eval mode.

    Attributes:
        name: In words: ``in place``.
        build: Makes the model; called by ``model``, which seeds it.
        given: Makes the positional inputs, or a dict of keyword inputs; called seeded as well.
        calls: The modules that are called in the model, by first name, in the order in which their
            calls begin, as often as they are called. Without the model itself.
        in_place: The modules that change a tensor that they are given; ``.`` is the model.
        aliases: Further names of modules that have one already.
        tied: The names of parameters that are known by more than one name.
        trains: Whether a loss on the output has a gradient for some parameter.
        random: Whether the output is another one each time.
        stateful: Whether a call changes what the next one returns.
        raises: What a forward pass raises.
        raises_backward: What a backward pass raises.
    """

    name: str
    build: Callable[[], nn.Module]
    given: Callable[[], Any]
    calls: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    trains: bool = True
    random: bool = False
    stateful: bool = False
    raises: type[BaseException] | None = None
    raises_backward: type[BaseException] | None = None

    def model(self) -> nn.Module:
        """A new model, always with the same weights. The random state of torch stays."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().eval()

    def inputs(self) -> tuple[Any, ...]:
        """New positional inputs, always the same."""
        return self._given()[0]

    def keywords(self) -> dict[str, Any]:
        """New keyword inputs, always the same."""
        return self._given()[1]

    def run(self, model: nn.Module) -> Any:
        """What a model returns for new inputs."""
        return model(*self.inputs(), **self.keywords())

    def _given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            given = self.given()
        return ((), given) if isinstance(given, dict) else (given, {})


ZOO: dict[str, Specimen] = {}


def specimen(given: Any, calls: str = "", variant: str = "", **facts: Any) -> Callable[[Any], Any]:
    """Make a specimen of a class or a function, under its name in words and that of a variant.

    Names of modules and parameters are given as words: ``calls="first act first"``. With
    ``make``, that is called with the class or function to make the model.
    """

    def enter(own: Any) -> Any:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", own.__name__).replace("_", " ").lower()
        lists = {key: tuple(v.split()) if isinstance(v, str) else v for key, v in facts.items()}
        make = lists.pop("make", lambda own: own())
        name = f"{words} {variant}".strip()
        assert name not in ZOO, name
        ZOO[name] = Specimen(name, lambda: make(own), given, tuple(calls.split()), **lists)
        return own

    return enter


def names(**facts: Any) -> list[str]:
    """The names of the specimens of which all these facts are true."""
    return [n for n, one in ZOO.items() if all(getattr(one, k) == v for k, v in facts.items())]


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists, dicts and dataclasses, in order."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | tuple | list):
        return []
    return [tensor for part in parts for tensor in tensors_in(part)]


def total(output: Any) -> Tensor:
    """A loss on all floating point tensors that a model returned."""
    floats = [t for t in tensors_in(output) if t.is_floating_point() or t.is_complex()]
    return sum((t.abs().float().square().sum() for t in floats), torch.zeros(()))


def vectors() -> tuple[Tensor]:
    """Two rows of four."""
    return (torch.randn(2, 4),)


def two_vectors() -> tuple[Tensor, Tensor]:
    """Two batches of two rows of four."""
    return torch.randn(2, 4), torch.randn(2, 4)


def images() -> tuple[Tensor]:
    """Two images with three channels, 8 by 8."""
    return (torch.randn(2, 3, 8, 8),)


def tokens() -> tuple[Tensor]:
    """Two rows of five numbers below 20."""
    return (torch.randint(20, (2, 5)),)


def sequences() -> tuple[Tensor]:
    """Two sequences of five vectors of length 4."""
    return (torch.randn(2, 5, 4),)
