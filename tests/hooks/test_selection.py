"""Which layers the patterns, types, depths and leaves choose, and what the tree tells of them."""

from __future__ import annotations

import inspect
import re
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope.errors import LayerError, RequestError
from hookscope.hooks.layers import (
    check_not_lazy,
    describe_model,
    layers_of,
    module_running,
    select,
    submodule,
    tensors_in_traceback,
)
from hookscope.specs.patterns import MAX_ALTERNATIVES, expand_braces
from tests.zoo import Module

SHARED = nn.Linear(3, 3)


def block() -> nn.Module:
    return nn.Sequential(OrderedDict(conv=nn.Conv1d(2, 2, 1), norm=nn.BatchNorm1d(2)))


def net() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(1, 2, 1),
            layer1=nn.Sequential(block(), block()),
            layer2=nn.ModuleDict({"a": SHARED, "b": SHARED}),
            head=nn.Linear(3, 2),
        )
    )


NAMES = [".", "stem", "layer1", "layer1.0", "layer1.0.conv", "layer1.0.norm", "layer1.1",
         "layer1.1.conv", "layer1.1.norm", "layer2", "layer2.a", "head"]  # fmt: skip


def chosen(*patterns: str, **more: Any) -> list[str]:
    return [layer.name for layer in select(net(), patterns, **more)]


def test_no_pattern_means_every_layer_in_the_order_of_definition() -> None:
    assert chosen() == NAMES == [layer.name for layer in layers_of(net())]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["stem"], ["stem"]),
        (["."], ["."]),
        (["head", "stem"], ["stem", "head"]),
        (["layer1"], ["layer1"]),
        (["layer1.*"], NAMES[3:9]),
        (["layer1.?"], ["layer1.0", "layer1.1"]),
        (["*.conv", "!layer1.1*"], ["layer1.0.conv"]),
        (["!*.conv", "*.conv", "*.norm"], ["layer1.0.norm", "layer1.1.norm"]),
        (["!layer*", "!."], ["stem", "head"]),
        (["layer2.b"], ["layer2.a"]),
        (["*", "!layer2.b"], [name for name in NAMES if name != "layer2.a"]),
        (["{stem,head}"], ["stem", "head"]),
        (["layer1.[!0].*"], ["layer1.1.conv", "layer1.1.norm"]),
    ],
)
def test_patterns_are_a_union_less_those_with_an_exclamation_mark(patterns, expected) -> None:
    assert chosen(*patterns) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"types": ["Linear"]}, ["layer2.a", "head"]),
        ({"types": ["*Norm*"]}, ["layer1.0.norm", "layer1.1.norm"]),
        ({"types": ["Conv2d", "Linear"]}, ["stem", "layer2.a", "head"]),
        ({"depth": 0}, ["."]),
        ({"depth": 1}, [".", "stem", "layer1", "layer2", "head"]),
        ({"depth": 2}, [".", "stem", "layer1", "layer1.0", "layer1.1", *NAMES[9:]]),
        ({"leaves": True}, ["stem", *NAMES[4:6], *NAMES[7:9], "layer2.a", "head"]),
        ({"leaves": True, "depth": 1}, ["stem", "head"]),
        ({"leaves": True, "types": ["Conv*"], "depth": 1}, ["stem"]),
    ],
)
def test_filters_keep_what_passes_all_of_them(more: dict[str, Any], expected: list[str]) -> None:
    assert chosen(**more) == expected
    assert chosen("*", **more) == expected


@pytest.mark.parametrize(
    ("patterns", "more", "subject", "hint"),
    [
        (["stem"], {"types": ["Linear"], "spec": "my.py:net"}, "filters", "tree my.py:net"),
        (["*", "!*"], {}, "filters", "tree"),
        (["stem", "sten"], {}, "MODEL.* 'sten'", r"stem\?.*tree MODEL"),
        (["stem", "!sten"], {}, "MODEL.* 'sten'", r"stem\?.*tree MODEL"),
        (["zzzzz"], {}, "MODEL.* 'zzzzz'", "^'hookscope tree MODEL"),
        (["layer3.*"], {}, r"'layer3\.\*'", r"layer[12]\.\* or layer[12]\.\*\?"),
        (["layer1.9*"], {}, r"'layer1\.9\*'", r"^[^*]*\?|^'hookscope"),
        (["layer2.bb"], {}, "'layer2.bb'", r"layer2\.b\b"),
        ([], {"types": ["Conv3d"]}, "'Conv3d'", "Conv2d|Conv1d"),
        ([], {"types": ["Linear", "zzzz"]}, "'zzzz'", "BatchNorm1d, Conv1d, Conv2d, Linear, Mod"),
    ],
)
def test_what_matches_nothing_is_an_error_that_names_what_is_near(
    patterns: list[str], more: dict[str, Any], subject: str, hint: str
) -> None:
    with pytest.raises(LayerError, match=subject) as caught:
        chosen(*patterns, **more)
    assert re.search(hint, caught.value.hint)


class Weighty(nn.Module):
    """Parameters and buffers of its own, one of them shared with a child and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.inner = nn.BatchNorm1d(3)
        self.same = nn.Linear(3, 2, bias=False, dtype=torch.float64)
        self.again = self.same
        self.inner.weight.requires_grad_(False)
        self.register_buffer("mask", torch.ones(7, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_the_tree_counts_parameters_buffers_and_bytes() -> None:
    tree = describe_model(Weighty(), "spec")
    root, inner, same = tree.modules
    assert tree.model == "spec" and tree.total is root
    assert (root.name, root.type, root.depth, root.leaf) == (".", "Weighty", 0, False)
    assert (root.own_parameters, root.parameters, root.trainable) == (5, 5 + 6 + 6, 5 + 3 + 6)
    assert root.buffers == 7 + 3 + 3 + 1
    assert root.bytes == 4 * 11 + 8 * 6 + 7 + 4 * 6 + 8
    assert (inner.name, inner.depth, inner.leaf, inner.own_parameters) == ("inner", 1, True, 6)
    assert (inner.buffers, inner.bytes, inner.trainable) == (7, 4 * 12 + 8, 3)
    assert (same.name, same.aliases, same.bytes) == ("same", ("again",), 48)
    assert same.arguments == "in_features=3, out_features=2, bias=False"
    file, line = root.source.rsplit(":", 1)
    assert file == __file__ and int(line) == inspect.getsourcelines(Weighty.forward)[1]


def test_the_source_told_by_a_module_comes_first_and_what_is_no_python_has_none() -> None:
    model = Weighty()
    for told, expected in (("elsewhere.py:3", "elsewhere.py:3"), (3, __file__)):
        model._hookscope_source = told
        assert describe_model(model, "w").total.source.startswith(expected)
    compiled = type("Compiled", (nn.Module,), {"forward": staticmethod(torch.relu)})
    assert describe_model(compiled(), "w").total.source == ""


def test_every_name_leads_to_its_module() -> None:
    model = net()
    modules = dict(model.named_modules())
    for layer in layers_of(model):
        name = "" if layer.name == "." else layer.name
        assert submodule(model, layer.name) is layer.module is modules[name]
    assert submodule(model, "") is model
    assert submodule(model, "layer2.b") is SHARED
    for name in ("layer3", "layer1.2", "layer1.0.conv.weight", "stem.", "head.0"):
        assert submodule(model, name) is None


def test_wrappers_do_not_show_in_the_names() -> None:
    inner = net()
    wrapped = nn.DataParallel(nn.Sequential(OrderedDict(part=nn.DataParallel(inner))))
    names = [layer.name for layer in layers_of(wrapped)]
    expected = [".", "part", *(f"part.{name}" for name in NAMES[1:])]
    assert names == expected
    assert submodule(wrapped, "part.stem") is inner.stem
    assert submodule(wrapped, "part") is inner


def failing(inner: nn.Module | None = None) -> Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = x + 1
        text = "no tensor"
        if inner is None:
            raise ValueError(f"{text} {tuple(y.shape)}")
        return self.inner(y)

    return Module(forward, inner=inner or nn.Identity())


def failed(model: nn.Module) -> Any:
    try:
        model(torch.zeros(3))
    except ValueError:
        return sys.exc_info()[2]
    raise AssertionError


def test_a_traceback_tells_which_module_ran_and_what_it_held() -> None:
    model = failing(failing(nn.Sequential(failing(), nn.Tanh())))
    traceback = failed(model)
    assert module_running(model, traceback) == "inner.inner.0"
    assert module_running(model, None) == "."
    assert module_running(nn.Linear(2, 2), traceback) == "."
    held = tensors_in_traceback(model.inner, traceback)
    assert [tensor.tolist() for tensor in held] == [[1, 1, 1], [2, 2, 2]]
    assert tensors_in_traceback(nn.ReLU(), traceback) == [] == tensors_in_traceback(model, None)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_is_refused_by_name() -> None:
    check_not_lazy(net())
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(RequestError, match=r"1\.0 \(LazyLinear\)"):
        check_not_lazy(model)
    with pytest.raises(RequestError, match=r"0 \(LazyBatchNorm1d\)"):
        check_not_lazy(nn.Sequential(nn.LazyBatchNorm1d(affine=False)))


def test_as_many_choices_as_are_allowed_unfold_and_one_more_does_not() -> None:
    assert MAX_ALTERNATIVES == 4096
    assert len(expand_braces("{a,b}" * 12)) == 4096
    most = "{" + ",".join(["a"] * 4096) + "}"
    assert len(expand_braces(most)) == 4096
    for pattern in ("{a,b}" * 13, most[:-1] + ",a}"):
        with pytest.raises(LayerError, match="4096"):
            expand_braces(pattern)
