"""What hookscope needs of the private parts of torch, a check for each; a new torch fails here.

Each name says which use in ``hookscope/sources/torchscript/private.py`` has to be looked at.
"""

from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import Node, nodes_within
from tests.sources.torchscript.examples import quietly
from tests.sources.torchscript.programs_classes import CLASSES

CPU = torch.device("cpu")
ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
APPEND = "aten::append.t(t[](a!) self, t(c -> *) el) -> t[](a!)"
RELU = "aten::relu_(Tensor(a!) self) -> Tensor(a!)"
SLICE = """graph(%x : (int, int, int)):
  %y : (int, int) = prim::TupleSlice[beg=1, end=3](%x)
  return (%y)"""


class Color(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: tuple[int, Tensor]


def doubled(x: Tensor, n: int = 2) -> Tensor:
    return x * n


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(2, 2)
        self.first = nn.ReLU()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(2))
        self.count = 3

    @torch.jit.ignore
    def own(self, x: Tensor) -> Tensor:
        return x + 1

    @torch.jit.export
    def others(self, x: Any) -> tuple[bool, Color]:
        self.own(self.weight)
        return isinstance(x, int), Color.RED

    def forward(self, x: Tensor, scale: float = 0.5, flag: bool = False) -> tuple[Point, Tensor]:
        self.count += 1
        parts = (self.count, x, "a", x)
        if isinstance(x, Tensor) and Color.RED.value > 0:
            x = doubled(x)
        future = torch.jit.fork(doubled, x, 3)
        items = torch.jit.annotate(list[int], [])
        items.append(1)
        x = x + self.seen
        return Point(self.count, parts[0:2]), self.second(x) + torch.jit.wait(future) * len(items)


@cache
def scripted() -> torch.jit.ScriptModule:
    with quietly():
        return torch.jit.script(Model())


def root() -> private.ScriptObject:
    return private.script_object(scripted())


method = cache(lambda name="forward": private.method(root(), name))  # the graph outlives its nodes


def nodes(kind: str, name: str = "forward") -> list[Node]:
    return [node for node in nodes_within(method(name).block) if node.kind == kind]


def kinds(block: Any) -> set[str]:
    return {node.kind for node in nodes_within(block)}


def attributes(kind: str, key: str, name: str = "forward") -> list[Any]:
    return [node.attributes[key] for node in nodes(kind, name)]


def script_class_method() -> set[str]:
    """The kinds of nodes in a method of a class of a script, found by the node that calls it."""
    with quietly():
        whole = torch.jit.script(CLASSES.whole("class_with_state"))
    graph = private.method(private.script_object(whole), "class_with_state")
    calls = (node for node in nodes_within(graph.block) if node.kind == "prim::CallMethod")
    call = next(node for node in calls if node.attributes["name"] == "add")
    owner = call.inputs[0].type
    assert {"add", "__init__"} <= set(private.methods_of(owner))
    return kinds(private.class_method(owner, "add", (call.inputs[1].type,)).block)


def sliced() -> Any:
    graph = torch._C.parse_ir(SLICE)
    return private._block(graph.param_node().owningBlock()).nodes[0].attributes


def signature_of(schema: str) -> tuple[Any, ...]:
    found = private.signature(schema)
    shape = (found.names, found.positional, found.defaults)
    return (*shape, found.generic, found.changes_container)


def append_type() -> list[Any]:
    static = nodes("aten::append")[0].inputs[0].type
    return [static.kind, static.text, [inner.kind for inner in static.inner]]


def arguments() -> list[tuple[Any, ...]]:
    return [(one.name, one.type.text, one.optional, one.default) for one in method().arguments]


def members() -> list[str]:
    texts = [str(node.raw) for node in nodes("prim::Constant", "others")]
    return [found["name"] for text in texts if (found := private._ENUM.search(text))]


def own_tensors() -> tuple[bool, bool]:
    weight, seen = private.parameters(root())["weight"], private.buffers(root())["seen"]
    return weight is scripted().weight, seen.data_ptr() == scripted().seen.data_ptr()


def without_function() -> list[str]:
    names = ("relu", "add", "conv2d", "max_pool2d", "linear")
    return [name for name in names if private.fast_function(name) is None]


def text_of_none() -> str:
    return private.single_node_function("aten::str", [private.NONE], private.STR)(None)


def nodes_in_function() -> set[str]:
    return kinds(private.called_function(nodes("prim::CallFunction")[0]).block) & {"aten::mul"}


def fields() -> list[Any]:
    found = (node.outputs[0].type.fields for node in nodes("prim::TupleConstruct"))
    return [names for names in found if names]


CHECKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "is_scripted": (lambda: list(map(private.is_scripted, (scripted(), nn.ReLU()))), [True, False]),
    "script_object": (lambda: len({root(), root()}), 1),
    "type_name": (lambda: private.type_name(root()).rpartition(".")[2], "Model"),
    "children": (lambda: list(private.children(root())), ["second", "first"]),
    "parameters and buffers": (own_tensors, (True, True)),
    "method_names": (lambda: sorted(private.method_names(root())), ["forward", "others"]),
    "method": (lambda: len(method().block.inputs), 4),
    "_argument": (
        arguments,
        [
            ("x", "Tensor", False, None),
            ("scale", "float", True, 0.5),
            ("flag", "bool", True, False),
        ],
    ),
    "_SOURCE_LINE": (lambda: Path(method().source.rpartition(":")[0]).name, Path(__file__).name),
    "_node": (lambda: nodes("aten::append")[0].operator, "aten::append.t"),
    "_node without a schema": (lambda: nodes("prim::GetAttr")[0].schema, ""),
    "_attributes of SetAttr": (lambda: attributes("prim::SetAttr", "name"), ["count"]),
    "_attributes of TupleSlice": (sliced, {"begin": 1, "end": 3}),
    "_attributes of isinstance": (
        lambda: [one.text for one in attributes("prim::isinstance", "types", "others")[0]],
        ["int"],
    ),
    "_attributes of PythonOp": (
        lambda: [callable(one) for one in attributes("prim::PythonOp", "function", "others")],
        [True],
    ),
    "_ENUM": (members, ["RED"]),
    "_type": (append_type, ["List", "List[int]", ["Int"]]),
    "_fields": (fields, [("x", "y")]),
    "called_function": (nodes_in_function, {"aten::mul"}),
    "class_method": (lambda: script_class_method() & {"prim::SetAttr"}, {"prim::SetAttr"}),
    "operator": (
        lambda: private.operator(ADD)(torch.ones(2), torch.ones(2), alpha=3).tolist(),
        [4.0, 4.0],
    ),
    "operator without one": (lambda: private.operator("aten::none(Tensor self) -> Tensor"), None),
    "signature": (
        lambda: signature_of(ADD),
        (("self", "other", "alpha"), 2, (..., ..., 1), False, False),
    ),
    "signature of a generic one": (lambda: signature_of(APPEND)[3:], (True, True)),
    "_CHANGES_CONTAINER": (lambda: signature_of(RELU)[3:], (False, False)),
    "fast_function": (without_function, []),
    "single_node_function": (text_of_none, "None"),
}


@pytest.mark.parametrize("use", CHECKS)
def test_a_private_part_of_torch_is_what_it_was(use: str) -> None:
    find, expected = CHECKS[use]
    assert find() == expected


def test_files_are_opened_and_what_is_none_is_a_runtime_error(tmp_path: Path) -> None:
    scripted().second.save(str(tmp_path / "model.pt"))
    opened = private.open_archive(str(tmp_path / "model.pt"), CPU)
    assert private.class_name(opened) == "Linear"
    (tmp_path / "model.pt").write_bytes(b"no archive")
    with pytest.raises(RuntimeError):  # which the source waits for
        private.open_archive(str(tmp_path / "model.pt"), CPU)
