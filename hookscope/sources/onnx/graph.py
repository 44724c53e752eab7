"""The graph of an ONNX file as plain data: its nodes, its values, and the calls of modules.

The nodes that follow each other within a module are one call of it. Later nodes, and those that a
different line of the calling module led to, are another. So is an operation that is done again in a
module of one operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hookscope.sources.onnx.scopes import ModuleLevel, NodeScope, usable_name

# Operators that compute sizes and indices if all their inputs are integers known beforehand.
_ARITHMETIC = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div"),
        *("Equal", "Expand", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceProd"),
        *("Reshape", "ScatterND", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
        *("Where", "Xor"),
    }
)
_SIZES = frozenset({"Shape", "Size"})
_INTEGERS = frozenset({6, 7, 9})  # INT32, INT64 and BOOL in TensorProto.DataType

# Files of torch.nn whose modules do each operation once in a call, with the exceptions.
_SINGLE_OPERATION = re.compile(
    r"torch\.nn\.modules\.(activation|batchnorm|channelshuffle|conv|dropout|flatten|instancenorm"
    r"|linear|normalization|padding|pixelshuffle|pooling|sparse|upsampling)"
    r"\.(?!MultiheadAttention|LPPool|Adaptive)\w+"
)


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph. ``inputs`` has the values that its subgraphs use, too."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: NodeScope | None
    rules: str = ""
    is_plain: bool = False
    arguments: tuple[str, ...] = ()  # as in the file: one that is left out is an empty text
    subgraphs: tuple[Graph, ...] = ()


@dataclass(frozen=True)
class Initializer:
    """A tensor that the file contains."""

    name: str
    shape: tuple[int, ...]
    dtype: int
    proto: Any = field(repr=False)  # a TensorProto

    @classmethod
    def of(cls, name: str, proto: Any) -> Initializer:
        """Return the initializer of a ``TensorProto``, which may have another name."""
        return cls(name, tuple(proto.dims), proto.data_type, proto)


@dataclass(frozen=True)
class Graph:
    """The main graph of a file, or a subgraph of one of its nodes."""

    nodes: tuple[GraphNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Initializer]
    attribute: str = ""  # of the node that has this subgraph, such as then_branch

    @cached_property
    def producers(self) -> dict[str, GraphNode]:
        """The node that computes each value."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """The indices of the nodes, without plain ones, that use each value."""
        users: dict[str, list[int]] = {}
        for node in self.nodes:
            for name in () if node.is_plain else node.inputs:
                users.setdefault(name, []).append(node.index)
        return users

    @cached_property
    def plain_values(self) -> frozenset[str]:
        """Values outside every module's computation: initializers, constants, sizes."""
        plain = (name for node in self.nodes if node.is_plain for name in node.outputs)
        return frozenset((*self.initializers, *plain))

    def ancestors(self, names: frozenset[str]) -> set[int]:
        """Return the indices of the nodes that are needed to compute the values ``names``."""
        needed: set[int] = set()
        waiting = list(names)
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is not None and node.index not in needed:
                needed.add(node.index)
                waiting += node.inputs
        return needed

    def walk(self, *around: Graph) -> Iterator[tuple[GraphNode, tuple[Graph, ...]]]:
        """Yield all nodes, those of subgraphs too, each with the graphs it is in, its own first."""
        graphs = (self, *around)
        for node in self.nodes:
            yield node, graphs
            for subgraph in node.subgraphs:
                yield from subgraph.walk(*graphs)


class PlainValues:
    """Finds, node by node in execution order, which values are sizes, indices or constants."""

    def __init__(
        self, initializers: Mapping[str, Initializer], around: PlainValues | None = None
    ) -> None:
        self._integers = {i.name for i in initializers.values() if i.dtype in _INTEGERS}
        self._static = set(initializers)
        if around is not None:
            self._integers |= around._integers
            self._static |= around._static

    def is_plain(self, node: Any, inputs: tuple[str, ...], *, is_helper: bool) -> bool:
        """Return whether the next node, a ``NodeProto``, is plain; see ``GraphNode.is_plain``."""
        is_static = self._static.issuperset(inputs)
        if is_static:
            self._static.update(node.output)
        if node.op_type == "Constant":
            if _constant_dtype(node) in _INTEGERS:
                self._integers.update(node.output)
            return True
        return self._is_size(node, inputs) or (is_helper and is_static)

    def _is_size(self, node: Any, inputs: tuple[str, ...]) -> bool:
        """Whether a node computes sizes and indices of integers known beforehand."""
        known = all(name in self._integers for name in inputs)
        if node.op_type not in _SIZES and not (node.op_type in _ARITHMETIC and inputs and known):
            return False
        if any(dtype not in _INTEGERS for dtype in _result_dtypes(node)):
            return False
        self._integers.update(node.output)
        return True


def _constant_dtype(node: Any) -> int:
    for attribute in node.attribute:
        if attribute.name in ("value_int", "value_ints"):
            return 7
        if attribute.name == "value":
            return int(attribute.t.data_type)
    return 0


def _result_dtypes(node: Any) -> Iterator[int]:
    """The type that an attribute gives the result, if one does."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            yield int(attribute.i)
        if node.op_type == "ConstantOfShape" and attribute.name == "value":
            yield int(attribute.t.data_type)
    if node.op_type == "ConstantOfShape" and not node.attribute:
        yield 1  # zeros of float32


@dataclass(eq=False)
class GraphCall:
    """One call of a module."""

    module: str
    children: list[GraphCall] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def walk(self) -> Iterator[GraphCall]:
        """Yield this call and all within it, in the order in which they begin."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class _OpenCall:
    level: ModuleLevel
    call: GraphCall
    operations: dict[str, str] = field(default_factory=dict)  # by the function of torch


def find_calls(graph: Graph, *, in_order: bool = True) -> GraphCall:
    """Return the call of the model, which has all others within it."""
    root = GraphCall("")
    opened = [_OpenCall(ModuleLevel(""), root)]
    groups = _Groups(root, graph)
    for node in graph.nodes:
        if node.is_plain:
            continue
        if node.scope is not None:
            if in_order:
                _enter(opened, node.scope)
            else:
                opened = groups.find(node.scope)
        for entry in opened:
            entry.call.nodes.append(node.index)
    for call in root.walk():
        if call is not root:
            call.inputs, call.outputs = _tensors_between(graph, call)
    root.inputs, root.outputs = graph.inputs, graph.outputs
    return root


def _enter(opened: list[_OpenCall], scope: NodeScope) -> None:
    """Close the open calls that the next node is not a part of, and open the others."""
    depth = 1
    for entry, level in zip(opened[1:], scope.levels, strict=False):
        if not entry.level.may_be_same_call(level):
            break
        if not entry.level.site:
            entry.level = level
        depth += 1
    is_innermost = depth == len(opened) == len(scope.levels) + 1
    if is_innermost and depth > 1 and _is_done_again(opened[-1], scope):
        depth -= 1
    del opened[depth:]
    for level in scope.levels[depth - 1 :]:
        call = GraphCall(level.name)
        opened[-1].call.children.append(call)
        opened.append(_OpenCall(level, call))
    opened[-1].operations[scope.target] = scope.operation


def _is_done_again(entry: _OpenCall, scope: NodeScope) -> bool:
    """Whether a module that does each operation once in a call has done the node's."""
    earlier = entry.operations.get(scope.target)
    is_new = earlier is not None and earlier != scope.operation
    return is_new and _SINGLE_OPERATION.fullmatch(entry.level.type) is not None


class _Groups:
    """Calls that are known by the sites in the file alone, whatever the order of the nodes."""

    def __init__(self, root: GraphCall, graph: Graph) -> None:
        self._root = _OpenCall(ModuleLevel(""), root)
        self._calls: dict[tuple[tuple[str, str], ...], _OpenCall] = {}
        levels = [level for n in graph.nodes if n.scope is not None for level in n.scope.levels]
        self._without_site = {level.name for level in levels if not level.site}

    def find(self, scope: NodeScope) -> list[_OpenCall]:
        """Return the calls that a node belongs to, with the model's own."""
        found = [self._root]
        key: tuple[tuple[str, str], ...] = ()
        for level in scope.levels:
            site = "" if level.name in self._without_site else level.site
            key = (*key, (level.name, site))
            if key not in self._calls:
                call = GraphCall(level.name)
                found[-1].call.children.append(call)
                self._calls[key] = _OpenCall(level, call)
            found.append(self._calls[key])
        return found


def _tensors_between(graph: Graph, call: GraphCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs and outputs of a call."""
    members = set(call.nodes)
    nodes = [graph.nodes[index] for index in call.nodes]
    made = {name for node in nodes for name in node.outputs}
    used = dict.fromkeys(name for node in nodes for name in node.inputs)
    inputs = tuple(name for name in used if name not in made and name not in graph.plain_values)
    outputs = tuple(
        name
        for node in nodes
        for name in node.outputs
        if name in graph.outputs or any(n not in members for n in graph.consumers.get(name, ()))
    )
    return inputs, outputs or nodes[-1].outputs[:1]


def own_name(node: GraphNode) -> str:
    """Return the name of the module of a node: its own, or that of its first output."""
    text = node.name or next(iter(node.outputs), "") or node.op
    return usable_name(text) or node.op


def unused_name(node: GraphNode, taken: set[str], prefix: str = "") -> str:
    """Return a name for the module of a node, and add it to the taken ones.

    >>> unused_name(GraphNode(0, "", "Relu", (), ("y",), None), {"body.y"}, "body.")
    'body.y_1'
    """
    name = plain = prefix + own_name(node)
    count = 0
    while name in taken:
        count += 1
        name = f"{plain}_{count}"
    taken.add(name)
    return name
