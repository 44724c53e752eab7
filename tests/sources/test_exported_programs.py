"""Models of many kinds to export: control flow, free lengths, state, structures, operators."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

import hookscope
from hookscope.sources.exported.exported_source import to_module
from tests.sources.test_exported import by_hand, check_agreement

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


pytestmark = pytest.mark.filterwarnings("ignore")


def exported(case: Case, way: str) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    model, args = case.make().eval(), copy.deepcopy(case.args)
    if way == "draft":
        return torch.export.draft_export(model, args, case.kwargs, **case.options)
    strict = way == "strict"
    return torch.export.export(model, args, case.kwargs, **case.options, strict=strict)


def check(name: str, way: str, folder: Path) -> None:
    case, file = CASES[name], folder / "net.pt2"
    torch.export.save(exported(case, way), file)
    torch.manual_seed(0)
    eager = case.make().eval()
    ours = hookscope.load_model(file).module
    expected, found = (run(copy.deepcopy(model), case) for model in (eager, ours))
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    assert alike(pytree.tree_leaves(found), pytree.tree_leaves(expected))
    theirs, hooked = (by_hand(m, *copy.deepcopy(case.args), **case.kwargs) for m in (eager, ours))
    lost = {key for key in theirs if key.partition(".grad")[0] in case.missing}
    assert hooked.keys() == theirs.keys() - lost
    assert [key for key in hooked if not alike(hooked[key], theirs[key])] == []
    hookscope.capture(file)


def run(model: torch.nn.Module, case: Case) -> Any:
    return model(*copy.deepcopy(case.args), **case.kwargs)


def alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


LONG = {"Scans", "Repeats", "MapsRows"}  # whose export takes PyTorch many seconds


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] if name in LONG else []) for name in CASES],
)
def test_an_exported_program_does_what_its_model_does(name: str, tmp_path: Path) -> None:
    check(name, "plain", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["strict", "draft"])
@pytest.mark.parametrize("name", CASES)
def test_so_it_does_exported_in_another_way(name: str, way: str, tmp_path: Path) -> None:
    if (name, way) == ("UnderAutocast", "strict"):
        pytest.skip("PyTorch 2.15 cannot run this program either")
    check(name, way, tmp_path)


class Norm(nn.Module):
    """Casts to the dtype that its input has already, as an RMSNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))


class TwiceCast(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.type_as(x).to(torch.float32))


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.inner = norm(), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.inner(self.norm(x)))


class Net(nn.Module):
    """Blocks with a residual around a norm, whose inputs are results of the model too."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(norm), Block(norm)])
        self.last = norm()

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = self.first(x)
        between = []
        for block in self.blocks:
            between.append(x)
            x = block(x)
        return self.last(x), between


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.linear(x).chunk(2, -1))


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.halves(x)
        return first * second


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("norm", [Norm, TwiceCast])
def test_a_residual_around_a_norm_is_no_output_of_the_norm(
    norm: type[nn.Module], strict: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Net(norm).eval(), torch.randn(2, 4)
    program = torch.export.export(model, (x,), strict=strict)
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = hookscope.load_model(tmp_path / "net.pt2").module
    expected, found = model(x), loaded(x)
    assert torch.equal(expected[0], found[0])
    assert all(map(torch.equal, expected[1], found[1]))
    check_agreement(model, copy.deepcopy(loaded), x)
    with hookscope.record(model, grads=True) as eager:
        model(x)[0].sum().backward()
    with hookscope.record(loaded, grads=True) as ours:
        loaded(x)[0].sum().backward()
    assert [key for key in eager if key.startswith("blocks")] == [
        key for key in ours if key.startswith("blocks")
    ]


def test_a_cast_that_is_a_module_s_only_result_stays_its_result() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    check_agreement(
        model, to_module(torch.export.export(model, (torch.ones(1, 4),))), torch.ones(1, 4)
    )


def test_several_results_of_a_module_are_recorded(tmp_path: Path) -> None:
    """A graph holds them in a list that refuses to be put together again."""
    model, x = Uses(), torch.randn(2, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "net.pt2")
    shot = hookscope.capture(tmp_path / "net.pt2", input=x)
    eager = hookscope.capture(model, input=x)
    assert list(shot) == list(eager)
    assert all(torch.equal(shot[key], eager[key]) for key in eager)
    assert hookscope.grads(tmp_path / "net.pt2", input=x, loss="sum").keys() >= {
        "halves/output.1.grad"
    }
