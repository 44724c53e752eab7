"""The calls of modules that the nodes of a graph make up, and the tensors that pass between them.

A node belongs to nested modules. The nodes that follow each other within a module are one call of
it. Later nodes of the same module are another call. So are nodes that a different line of code of
the calling module led to, and an operation that a module of one operation has done already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hookscope.sources.onnx.graph import Graph, GraphNode
from hookscope.sources.onnx.scopes import ModuleLevel, NodeScope, usable_name

# Files of torch.nn whose modules do each operation once in a call, with the exceptions.
_SINGLE_OPERATION = re.compile(
    r"torch\.nn\.modules\.(activation|batchnorm|channelshuffle|conv|dropout|flatten|instancenorm"
    r"|linear|normalization|padding|pixelshuffle|pooling|sparse|upsampling)"
    r"\.(?!MultiheadAttention|LPPool|Adaptive)\w+"
)


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
    """Whether a module that does each operation once in a call has done that of the node."""
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


def name_each_node(nodes: Sequence[GraphNode]) -> list[NodeScope]:
    """Return a scope with a module for each node, for a file that names no modules.

    The module has the name of the node, or that of its first output, with dots for slashes and
    colons. Equal names get a number. It has the node's operator as its type.

    Example:
        >>> nodes = [GraphNode(n, "a/b:0", "Relu", (), ("y",), None) for n in range(2)]
        >>> [scope.levels[0].name for scope in name_each_node(nodes)]
        ['a.b.0', 'a.b.0_1']
    """
    taken: set[str] = set()
    return [NodeScope((ModuleLevel(unused_name(node, taken), node.op),)) for node in nodes]


def unused_name(node: GraphNode, taken: set[str], prefix: str = "") -> str:
    """Return a name for the module of a node, and add it to those that are taken.

    >>> unused_name(GraphNode(0, "", "Relu", (), ("y",), None), {"body.y"}, "body.")
    'body.y_1'
    """
    text = node.name or next(iter(node.outputs), "") or node.op
    name = plain = prefix + (usable_name(text) or node.op)
    count = 0
    while name in taken:
        count += 1
        name = f"{plain}_{count}"
    taken.add(name)
    return name
