"""A method's graph as plain data: what the rest of this folder works on, free of ``torch._C``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False, slots=True)
class Type:
    """A static type.

    Attributes:
        kind: its kind without the ending, such as ``Tensor``, ``List``, ``Class``, ``Enum``.
        text: as in a signature: ``Optional[Tensor]``, or the qualified name of a class.
        inner: element types; of a dict the key's and the value's.
        fields: names of a named tuple's fields.
        raw: PyTorch's own object, for ``private`` alone.
    """

    kind: str
    text: str
    inner: tuple[Type, ...]
    fields: tuple[str, ...]
    raw: Any

    @property
    def name(self) -> str:
        """The last part of a class's name."""
        return self.text.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of a graph: a number that is unique in its graph, and a type."""

    id: int
    type: Type


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Nodes in order, the values that come in, and those that go out."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation.

    Attributes:
        kind: ``aten::add``, ``prim::If`` ...
        schema: the operator's full signature; empty for what has none.
        attributes: ``name`` of what is got or called, ``value`` of a constant, ``types`` of an
            ``isinstance``, ``graph`` of a fork or a called function, ``function`` of Python's own.
        source: where in the original code it stands, ``resnet.py:279``; empty if not known.
        raw: PyTorch's own object, for ``private`` alone.
    """

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
        """Name and overload, ``aten::add.Tensor``; the kind where there is no schema."""
        return self.schema.partition("(")[0] or self.kind


@dataclass(frozen=True)
class Argument:
    """One parameter of a method; ``default`` means something only if ``optional``."""

    name: str
    type: Type
    optional: bool = False
    default: Any = None


@dataclass(frozen=True)
class Method:
    """A method of a module or class, or a function: its parameters and its graph.

    ``arguments`` leaves ``self`` out; ``bound`` tells whether the graph's first input is it.
    ``raw`` keeps PyTorch's own graph, without which its nodes cannot be asked any more.
    """

    name: str
    arguments: tuple[Argument, ...]
    block: Block
    bound: bool
    source: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enum whose Python class is not at hand."""

    type: str
    name: str


@dataclass(frozen=True)
class Schema:
    """What a call of an operator needs to know of its signature.

    Attributes:
        names: of the arguments.
        positional: how many of them are not given by keyword.
        defaults: for each argument, what it is if left out; ``...`` where it must be given.
        generic: it has type variables or takes any number of arguments.
        changes_container: it alters a list or dict, or returns what one holds.
    """

    names: tuple[str, ...]
    positional: int
    defaults: tuple[Any, ...]
    generic: bool
    changes_container: bool


def types_handed_on(block: Block) -> Iterator[Type]:
    """The types of the values that may be taken for one of a wider type, such as Any.

    Those are items of containers, arguments and results, but not what an operator works on. What is
    the result of a cast has had its type before.
    """
    nodes = list(nodes_within(block))
    casts = {node.outputs[0].id for node in nodes if node.kind == "prim::unchecked_cast"}
    used = [
        *block.outputs,
        *(value for node in nodes for inner in node.blocks for value in inner.outputs),
        *(value for node in nodes for value in node.inputs[1 if node.schema else 0 :]),
    ]
    yield from (value.type for value in used if value.id not in casts)


def nodes_within(block: Block) -> Iterator[Node]:
    """Every node of a block, and of the blocks inside them."""
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from nodes_within(inner)
