"""Models of many kinds to export: control flow, free lengths, state, structures, operators."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@dataclass
class Case:
    """A model, what it is exported with, and how.

    Attributes:
        args: positional inputs.
        kwargs: inputs by keyword.
        options: further arguments of ``torch.export.export``.
        missing: modules whose calls the export does not keep.
    """

    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


CASES: dict[str, Case] = {}


def case(*args: Any, missing: str = "", kwargs: Any = None, **options: Any) -> Any:
    def add(make: type[nn.Module]) -> type[nn.Module]:
        lost = frozenset(missing.split())
        CASES[make.__name__] = Case(make, args, kwargs or {}, options, lost)
        return make

    return add


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()


@case(X)
class Chooses(Parts):
    def forward(self, x: Tensor) -> Tensor:
        def deeper(x: Tensor) -> Tensor:
            return torch.cond(x.mean() > 1, lambda y: y.cos(), lambda y: y + 1.0, (x,))

        return self.b(torch.cond(x.sum() > 0, deeper, lambda x: x.sin(), (self.act(x),)))


@case(X)
class MapsRows(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(map_rows(lambda row: row * 2, self.b(x)))


@case(X)
class Repeats(Parts):
    def forward(self, x: Tensor) -> Tensor:
        state = (torch.tensor(0), self.b(x))
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), state)[1]


@case(X)
class Scans(Parts):
    def forward(self, x: Tensor) -> Tensor:
        last, all_of_them = scan(
            lambda carried, row: (carried + row, (carried * row).clone()), torch.zeros(4), self.a(x)
        )
        return self.act(all_of_them) + last


@case(X, dynamic_shapes={"x": {0: Dim("rows", min=2, max=9)}})
class FreeLength(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.act(self.a(x)), x])[::2].reshape(-1) + x.shape[0]


@case(torch.tensor([3]))
class LengthFromAValue(Parts):
    def forward(self, n: Tensor) -> Tensor:
        length = n.item()
        torch._check(length >= 1)
        torch._check(length < 10)
        return self.a(torch.ones(length, 4))


@case(X)
class MaskedRows(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[x.sum(1) > -100]).sum()


@case(X)
class Constants(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.several = torch.ones(4), [torch.ones(1), torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x * self.shift) + self.several[1] + torch.tensor([1.0, 2.0, 3.0, 4.0])


@case(X)
class ChangesBuffers(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))
        self.register_buffer("last", torch.zeros(4), persistent=False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        self.last.copy_(x[0].detach())
        return self.norm(self.a(x)) + self.runs + self.last


@case(X)
class ChangesItsInput(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return self.a(x)


@case(X, X, kwargs={"b": X, "a": X * 2})
class ManyInputs(Parts):
    def forward(self, *xs: Tensor, **named: Tensor) -> Tensor:
        return self.a(xs[0]) + xs[1] * named["a"] - named["b"]


@case(X, {"a": [X, (X + 1, X)], "b": {"c": X}})
class NestedStructures(Parts):
    def forward(self, x: Tensor, d: dict[str, Any]) -> Any:
        ordered = OrderedDict(z=self.act(x))
        return {"o": [self.a(x), (d["a"][1][0], None)], "p": d["b"]["c"] * 2, "q": 3, "s": ordered}


@case(X, 2, True, 1.5, None, "s")
class PlainInputs(Parts):
    def forward(self, x: Tensor, n: int, b: bool, f: float, z: None, s: str) -> Tensor:
        return self.a(x) * n + f if b and z is None else x


@case(X)
class SharedWeights(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(self.act(self.a(x)))))


@case(X)
class ParametersOfItsOwn(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.several = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.named = nn.ParameterDict({"k": nn.Parameter(torch.ones(4))})

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.w + self.several[0] * self.named["k"] + self.b.weight.sum()


@case(X)
class ListedOutOfOrder(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for place in (0, 2, 0, 1):
            x = self.act(self.each[place](x))
        return x


@case(X, missing="a act")
class UnderAutocast(Parts):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.act(self.a(x))
        return self.b(y.float())


@case(X)
class WithHooksOfItsOwn(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda module, args, output: output * 2)
        self.act.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.a(x))


@case(X)
class Parametrized(Parts):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.a)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


@case(X)
class SameTwice(Parts):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        return y, y, x, x.shape[0], None


@case()
class NoInputs(Parts):
    def forward(self) -> Tensor:
        return self.a(torch.ones(2, 4))


@torch.library.custom_op("hookscope_exported::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: gradient * 2)


@case(X)
class CustomOperator(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(doubled(self.a(x)))
