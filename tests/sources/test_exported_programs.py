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
from tests.zoo import ZOO, Module

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@dataclass
class Case:
    """A model, what it is exported with, and how.

    Attributes:
        args: positional inputs.
        kwargs: inputs by keyword.
        options: further arguments of ``torch.export.export``.
    """

    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(*args: Any, kwargs: Any = None, **options: Any) -> Any:
    """Make a case of a class of modules, or of a function: the ``forward`` of ``Parts``."""

    def add(own: Any) -> Any:
        make = own if isinstance(own, type) else type("Net", (Parts,), {"forward": own})
        CASES[own.__name__] = Case(make, args, kwargs or {}, options)
        return own

    return add


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()


@case(X)
def chooses(self: Parts, x: Tensor) -> Tensor:
    def deeper(x: Tensor) -> Tensor:
        return torch.cond(x.mean() > 1, lambda y: y.cos(), lambda y: y + 1.0, (x,))

    return self.b(torch.cond(x.sum() > 0, deeper, lambda x: x.sin(), (self.act(x),)))


@case(X)
def maps_rows(self: Parts, x: Tensor) -> Tensor:
    return self.act(map_rows(lambda row: row * 2, self.b(x)))


@case(X)
def repeats(self: Parts, x: Tensor) -> Tensor:
    state = (torch.tensor(0), self.b(x))
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), state)[1]


@case(X)
def scans(self: Parts, x: Tensor) -> Tensor:
    last, all_of_them = scan(
        lambda carried, row: (carried + row, (carried * row).clone()), torch.zeros(4), self.a(x)
    )
    return self.act(all_of_them) + last


@case(X, dynamic_shapes={"x": {0: Dim("rows", min=2, max=9)}})
def free_length(self: Parts, x: Tensor) -> Tensor:
    return torch.cat([self.act(self.a(x)), x])[::2].reshape(-1) + x.shape[0]


@case(torch.tensor([3]))
def length_from_a_value(self: Parts, n: Tensor) -> Tensor:
    length = n.item()
    torch._check(length >= 1)
    torch._check(length < 10)
    return self.a(torch.ones(length, 4))


@case(X)
def masked_rows(self: Parts, x: Tensor) -> Tensor:
    return self.a(x[x.sum(1) > -100]).sum()


@case(X)
class Constants(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.several = torch.ones(4), [torch.ones(1), torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x * self.shift) + self.several[1] + torch.tensor([1.0, 2.0, 3.0, 4.0])


@case(X, X, kwargs={"b": X, "a": X * 2})
def many_inputs(self: Parts, *xs: Tensor, **named: Tensor) -> Tensor:
    return self.a(xs[0]) + xs[1] * named["a"] - named["b"]


@case(X, {"a": [X, (X + 1, X)], "b": {"c": X}})
def nested_structures(self: Parts, x: Tensor, d: dict[str, Any]) -> Any:
    ordered = OrderedDict(z=self.act(x))
    return {"o": [self.a(x), (d["a"][1][0], None)], "p": d["b"]["c"] * 2, "q": 3, "s": ordered}


@case(X, 2, True, 1.5, None, "s")
def plain_inputs(self: Parts, x: Tensor, n: int, b: bool, f: float, z: None, s: str) -> Tensor:
    return self.a(x) * n + f if b and z is None else x


@case(X)
class WithHooksOfItsOwn(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda module, args, output: output * 2)
        self.act.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.a(x))


@case(X)
def same_twice(self: Parts, x: Tensor) -> Any:
    y = self.a(x)
    return y, y, x, x.shape[0], None


@case()
def no_inputs(self: Parts) -> Tensor:
    return self.a(torch.ones(2, 4))


@torch.library.custom_op("hookscope_exported::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: gradient * 2)


@case(X)
def custom_operator(self: Parts, x: Tensor) -> Tensor:
    return self.b(doubled(self.a(x)))


KINDS = "tied", "parameters", "module dict", "autocast", "weight norm", "writes input"
KINDS += "hooked", "remembers", "siamese", "heads", "keywords", "no grad"
CASES |= {kind: Case(ZOO[kind].model, ZOO[kind].inputs(), ZOO[kind].keywords()) for kind in KINDS}
MISSING = {("autocast", "inner"), ("autocast", "inner.grad")}  # whose calls the export loses
LONG = {"scans", "repeats", "maps_rows"}  # whose export takes PyTorch many seconds
PROGRAMS = [
    pytest.param(name, way, marks=pytest.mark.exhaustive if way != "plain" or name in LONG else ())
    for name in CASES
    for way in ("plain", "strict", "draft")
    if (name, way) != ("autocast", "strict")  # PyTorch 2.15 cannot run this program either
]


@pytest.mark.parametrize(("name", "way"), PROGRAMS)
def test_an_exported_program_does_what_its_model_does(name: str, way: str, tmp_path: Path) -> None:
    case, file = CASES[name], tmp_path / "net.pt2"
    export = torch.export.draft_export if way == "draft" else torch.export.export
    options = {**case.options, "strict": True} if way == "strict" else case.options
    torch.manual_seed(0)
    program = export(case.make().eval(), copy.deepcopy(case.args), case.kwargs, **options)
    torch.export.save(program, file)
    torch.manual_seed(0)
    eager = case.make().eval()
    ours = hookscope.load_model(file).module
    expected, found = (run(copy.deepcopy(model), case) for model in (eager, ours))
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    assert alike(pytree.tree_leaves(found), pytree.tree_leaves(expected))
    theirs, hooked = (by_hand(m, *copy.deepcopy(case.args), **case.kwargs) for m in (eager, ours))
    assert {(name, key) for key in theirs.keys() ^ hooked.keys()} == {
        lost for lost in MISSING if lost[0] == name
    }
    assert [key for key in hooked if not alike(hooked[key], theirs[key])] == []
    hookscope.capture(file)


def run(model: torch.nn.Module, case: Case) -> Any:
    return model(*copy.deepcopy(case.args), **case.kwargs)


def alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


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


def block(norm: nn.Module) -> Module:
    return Module(
        lambda self, x: x + self.drop(self.inner(self.norm(x))),
        norm=norm,
        inner=nn.Linear(4, 4),
        drop=nn.Dropout(0.5),
    )


def between_blocks(self: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Blocks with a residual around a norm, whose inputs are results of the model too."""
    x = self.first(x)
    between = []
    for block in self.blocks:
        between.append(x)
        x = block(x)
    return self.last(x), between


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("norm", [Norm, TwiceCast])
def test_a_residual_around_a_norm_is_no_output_of_the_norm(
    norm: type[nn.Module], strict: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    blocks = nn.ModuleList([block(norm()), block(norm())])
    model = Module(between_blocks, first=nn.Linear(4, 4), blocks=blocks, last=norm()).eval()
    x = torch.randn(2, 4)
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
    program = torch.export.export(model, (X,))
    check_agreement(model, to_module(program), X)


def test_several_results_of_a_module_are_recorded(tmp_path: Path) -> None:
    """A graph holds them in a list that refuses to be put together again."""
    halves = Module(lambda self, x: list(self.linear(x).chunk(2, -1)), linear=nn.Linear(4, 8))
    model, x = Module(lambda self, x: torch.mul(*self.halves(x)), halves=halves), torch.randn(2, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "net.pt2")
    shot = hookscope.capture(tmp_path / "net.pt2", input=x)
    eager = hookscope.capture(model, input=x)
    assert list(shot) == list(eager)
    assert all(torch.equal(shot[key], eager[key]) for key in eager)
    assert hookscope.grads(tmp_path / "net.pt2", input=x, loss="sum").keys() >= {
        "halves/output.1.grad"
    }
