"""The graph of an ONNX file as plain data: its nodes, its values and where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hookscope.sources.onnx.scopes import NodeScope

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


@dataclass(frozen=True)
class GraphNode:
    """One node of the graph."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: NodeScope | None
    rules: str = ""
    is_plain: bool = False
    has_subgraph: bool = False
    inner: tuple[NodeScope, ...] = ()


@dataclass(frozen=True)
class Initializer:
    """A tensor that the file contains."""

    name: str
    shape: tuple[int, ...]
    dtype: int


@dataclass(frozen=True)
class Graph:
    """The main graph of a file."""

    nodes: tuple[GraphNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Initializer]

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
        """Values that are no part of a module's computation: initializers, constants, sizes."""
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


class PlainValues:
    """Finds, node by node in execution order, which values are sizes, indices or constants."""

    def __init__(self, initializers: Mapping[str, Initializer]) -> None:
        self._integers = {i.name for i in initializers.values() if i.dtype in _INTEGERS}
        self._static = set(initializers)

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
