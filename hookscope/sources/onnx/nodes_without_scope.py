"""The places of nodes that say no module, in a file of which other nodes do.

Tools that change an exported file, such as a quantizer, add nodes and replace others without the
names of modules. The exporter itself writes no modules for a split and for some casts.
"""

from __future__ import annotations

from dataclasses import replace

from hookscope.sources.onnx.calls import unused_name
from hookscope.sources.onnx.graph import Graph, GraphNode
from hookscope.sources.onnx.scopes import DEEPEST, ModuleLevel, NodeScope

_Levels = tuple[ModuleLevel, ...]
# Operators that the exporter adds without a module. They are a part of the module around them.
_PASSING_ON = frozenset(("Cast", "Identity", "Split", "SplitToSequence", "SequenceAt"))


def lacks_scope(node: GraphNode) -> bool:
    """Whether a node computes something and says no module."""
    return node.scope is None and not node.is_plain


def place_nodes(graph: Graph) -> tuple[GraphNode, ...]:
    """Return the nodes, each with a scope if it is not plain.

    A node without one belongs to the calls that both its inputs come from and its outputs go to. In
    the innermost of them it is a module with its own name.
    """
    scopes = (node.scope for node in graph.nodes if node.scope is not None)
    taken = {level.name for scope in scopes for level in scope.levels}
    before = _calls_before(graph)
    after = _calls_after(graph)
    placed = []
    for node in graph.nodes:
        if lacks_scope(node):
            around = _shared(before[node.index], after[node.index]) or ()
            own = () if node.op in _PASSING_ON else (_own_level(node, around, taken),)
            node = replace(node, scope=NodeScope((*around, *own)))
        placed.append(node)
    return tuple(placed)


def _own_level(node: GraphNode, around: _Levels, taken: set[str]) -> ModuleLevel:
    prefix = f"{around[-1].name}." if around and around[-1].name.count(".") < DEEPEST // 2 else ""
    return ModuleLevel(unused_name(node, taken, prefix), node.op)


def _calls_before(graph: Graph) -> dict[int, _Levels | None]:
    """For each node without a scope, the calls that all values come from that it depends on."""
    found: dict[int, _Levels | None] = {}
    for node in filter(lacks_scope, graph.nodes):
        calls: _Levels | None = None
        for name in node.inputs:
            if name in graph.inputs:
                calls = ()
            elif name in graph.producers and name not in graph.plain_values:
                calls = _shared(calls, _levels(graph.producers[name], found))
        found[node.index] = calls
    return found


def _calls_after(graph: Graph) -> dict[int, _Levels | None]:
    """For each node without a scope, the calls that all nodes are in that depend on it."""
    found: dict[int, _Levels | None] = {}
    outputs = frozenset(graph.outputs)
    for node in reversed([node for node in graph.nodes if lacks_scope(node)]):
        users = [graph.nodes[n] for name in node.outputs for n in graph.consumers.get(name, ())]
        is_output = not outputs.isdisjoint(node.outputs)
        calls: _Levels | None = () if is_output and node.op not in _PASSING_ON else None
        for user in users:
            calls = _shared(calls, _levels(user, found))
        found[node.index] = calls if users else ()
    return found


def _levels(node: GraphNode, found: dict[int, _Levels | None]) -> _Levels | None:
    return found.get(node.index) if node.scope is None else node.scope.levels


def _shared(a: _Levels | None, b: _Levels | None) -> _Levels | None:
    """The outermost calls that two nodes have in common; None is a node that says nothing."""
    if a is None or b is None:
        return b if a is None else a
    shared = []
    for one, other in zip(a, b, strict=False):
        if not one.may_be_same_call(other):
            break
        shared.append(one if one.site else other)
    return tuple(shared)
