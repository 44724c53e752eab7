"""The graph of a method as plain data, without objects of ``torch._C``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False, slots=True)
class Type:
    """A static type."""

    kind: str
    text: str
    inner: tuple[Type, ...]
    fields: tuple[str, ...]
    raw: Any

    @property
    def name(self) -> str:
        """The last part of the name of a class."""
        return self.text.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of a graph: a number that is unique in its graph, and a type."""

    id: int
    type: Type


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Nodes in order, with the inputs and outputs of the block."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation."""

    kind: str
    schema: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    blocks: tuple[Block, ...]
    attributes: Mapping[str, Any]
    source: str
    raw: Any

    @property
    def operator(self) -> str:
        """Name and overload, ``aten::add.Tensor``; the kind if there is no schema."""
        return self.schema.partition("(")[0] or self.kind


@dataclass(frozen=True)
class Argument:
    """One parameter of a method; ``default`` is valid only if ``optional``."""

    name: str
    type: Type
    optional: bool = False
    default: Any = None


@dataclass(frozen=True)
class Method:
    """A method of a module or class, or a function: its parameters and its graph."""

    name: str
    arguments: tuple[Argument, ...]
    block: Block
    bound: bool
    source: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enum whose Python class is not available."""

    type: str
    name: str


@dataclass(frozen=True)
class Schema:
    """The signature of an operator, as far as a call needs it."""

    names: tuple[str, ...]
    positional: int
    defaults: tuple[Any, ...]
    generic: bool
    changes_container: bool


def types_passed_on(block: Block) -> Iterator[Type]:
    """Yield the types of values (not operands or casts) that may be used as a wider type."""
    nodes = list(nodes_within(block))
    casts = {node.outputs[0].id for node in nodes if node.kind == "prim::unchecked_cast"}
    used = [
        *block.outputs,
        *(value for node in nodes for inner in node.blocks for value in inner.outputs),
        *(value for node in nodes for value in node.inputs[1 if node.schema else 0 :]),
    ]
    yield from (value.type for value in used if value.id not in casts)


def nodes_within(block: Block) -> Iterator[Node]:
    """Yield every node of a block and of its inner blocks."""
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from nodes_within(inner)
