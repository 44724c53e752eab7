"""Reads the nodes of an ONNX file, in execution order, with the modules that they belong to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any

from hookscope.errors import ModelError
from hookscope.sources.onnx.file_tensors import subgraph_tensors
from hookscope.sources.onnx.graph import (
    Graph,
    GraphNode,
    Initializer,
    PlainValues,
    own_name,
    unused_name,
)
from hookscope.sources.onnx.model_file import OnnxFile
from hookscope.sources.onnx.scopes import (
    DEEPEST,
    ModuleLevel,
    NodeScope,
    is_exported_by_torch,
    scope_from_metadata,
    scopes_from_names,
    usable_name,
)

_Levels = tuple[ModuleLevel, ...]
# Operators that the exporter adds without a module. They are a part of the module around them.
_PASSING_ON = frozenset(("Cast", "Identity", "Split", "SplitToSequence", "SequenceAt"))

_TORCH = "pytorch"
_RULES = "pkg.onnxscript.rewriter.rule_name"
_AGAIN = "Export the model again."


def lacks_scope(node: GraphNode) -> bool:
    """Whether a node computes something and says no module."""
    return node.scope is None and not node.is_plain


def place_nodes(graph: Graph, *, has_modules: bool) -> Graph:
    """Return the graph; a node without a scope gets a module, in the calls around it if known."""
    scopes = (node.scope for node, _ in graph.walk() if node.scope is not None)
    taken = {level.name for scope in scopes for level in scope.levels}
    before = _calls_before(graph) if has_modules else {}
    after = _calls_after(graph) if has_modules else {}
    nodes = []
    for node in graph.nodes:
        around = _shared(before.get(node.index), after.get(node.index)) or ()
        holder = around[-1].name if around else ""
        nodes.append(_placed(node, around, holder, taken, has_modules=has_modules))
    return replace(graph, nodes=tuple(nodes))


def _placed(
    node: GraphNode, around: _Levels, holder: str, taken: set[str], *, has_modules: bool
) -> GraphNode:
    """The node, and those in its subgraphs, with a scope inside the module ``holder``."""
    if lacks_scope(node):
        own: _Levels = ()
        if not has_modules or node.op not in _PASSING_ON:
            prefix = f"{holder}." if holder and holder.count(".") < DEEPEST // 2 else ""
            own = (ModuleLevel(unused_name(node, taken, prefix), node.op),)
        node = replace(node, scope=NodeScope((*around, *own)))
    if node.scope is None or not node.subgraphs:
        return node
    levels = node.scope.levels
    name = levels[-1].name if levels else own_name(node)
    subgraphs = []
    for subgraph in node.subgraphs:
        inside = f"{name}.{subgraph.attribute}"
        nodes = (
            _placed(inner, levels, inside, taken, has_modules=has_modules)
            for inner in subgraph.nodes
        )
        subgraphs.append(replace(subgraph, nodes=tuple(nodes)))
    return replace(node, subgraphs=tuple(subgraphs))


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


@dataclass(frozen=True)
class ReadGraph:
    """The graph of a file."""

    graph: Graph
    has_modules: bool
    in_order: bool


def read_graph(file: OnnxFile) -> ReadGraph:
    """Return the graph of a file."""
    source = file.proto.graph
    initializers = {
        tensor.name: Initializer.of(tensor.name, tensor) for tensor in source.initializer
    }
    known = {*initializers, *(value.name for value in source.input), ""}
    known |= {tensor.values.name for tensor in source.sparse_initializer}
    protos, is_sorted = _sorted(file.path, list(source.node), known)
    owners = frozenset(name.rpartition(".")[0] for name in initializers)
    scopes = _scopes(protos, owners)
    has_modules = is_exported_by_torch(chain(scopes, _inner_scopes(protos, owners)))
    reader = _NodeReader(file.path, owners, has_modules)
    graph = Graph(
        tuple(reader.nodes(protos, scopes, PlainValues(initializers))),
        tuple(value.name for value in file.inputs),
        tuple(value.name for value in file.outputs),
        initializers,
    )
    graph = place_nodes(graph, has_modules=has_modules)
    missing = [name for name in graph.outputs if name not in known and name not in graph.producers]
    if missing:
        raise ModelError(f"The output {missing[0]!r} of {file.path!r} is never computed.", _AGAIN)
    return ReadGraph(graph, has_modules, is_sorted and file.proto.producer_name == _TORCH)


@dataclass(frozen=True)
class _NodeReader:
    """Reads nodes and the subgraphs in them."""

    path: str
    owners: frozenset[str]
    has_modules: bool

    def nodes(
        self, protos: Sequence[Any], scopes: Sequence[NodeScope | None], plain: PlainValues
    ) -> Iterator[GraphNode]:
        """Yield the nodes; those that name no module have no scope yet."""
        for index, (proto, scope) in enumerate(zip(protos, scopes, strict=True)):
            inputs = _inputs_of(proto)
            subgraphs = tuple(self._subgraph(*entry, plain) for entry in _subgraphs(proto))
            is_helper = self.has_modules and scope is None and not subgraphs
            yield GraphNode(
                index,
                proto.name,
                proto.op_type,
                inputs,
                tuple(filter(None, proto.output)),
                scope if self.has_modules else None,
                _metadata(proto).get(_RULES, ""),
                plain.is_plain(proto, inputs, is_helper=is_helper),
                tuple(proto.input),
                subgraphs,
            )

    def _subgraph(self, attribute: str, source: Any, around: PlainValues) -> Graph:
        tensors = subgraph_tensors(self.path, source)
        initializers = {name: Initializer.of(name, tensor) for name, tensor in tensors.items()}
        protos = [node for node in source.node if tensors.keys().isdisjoint(node.output)]
        scopes = _scopes(protos, self.owners)
        return Graph(
            tuple(self.nodes(protos, scopes, PlainValues(initializers, around))),
            tuple(value.name for value in source.input),
            tuple(value.name for value in source.output),
            initializers,
            usable_name(attribute) or "subgraph",
        )


def _scopes(protos: Sequence[Any], owners: Collection[str]) -> list[NodeScope | None]:
    """The scope of each node, by its metadata or by its name."""
    scopes = [scope_from_metadata(_metadata(proto)) for proto in protos]
    return scopes if any(scopes) else scopes_from_names([proto.name for proto in protos], owners)


def _inner_scopes(protos: Sequence[Any], owners: Collection[str]) -> Iterator[NodeScope | None]:
    """The scopes of the nodes in subgraphs, at any depth."""
    for proto in protos:
        for _, graph in _subgraphs(proto):
            yield from _scopes(graph.node, owners)
            yield from _inner_scopes(graph.node, owners)


def _sorted(path: str, protos: list[Any], known: set[str]) -> tuple[list[Any], bool]:
    """The nodes so that each follows those that it depends on, and whether they were like that."""
    inputs = [_inputs_of(proto) for proto in protos]
    lacking = [{name for name in names if name not in known} for names in inputs]
    users: dict[str, list[int]] = {}
    for n, names in enumerate(lacking):
        for name in names:
            users.setdefault(name, []).append(n)
    ready = [n for n, names in enumerate(lacking) if not names]
    heapify(ready)  # of the nodes that can be next, the first in the file is next
    order = []
    while ready:
        n = heappop(ready)
        order.append(n)
        for name in protos[n].output:
            for user in users.pop(name, ()):
                lacking[user].discard(name)
                if not lacking[user]:
                    heappush(ready, user)
    if len(order) < len(protos):
        n = next(n for n, names in enumerate(lacking) if names)
        name = next(name for name in inputs[n] if name in lacking[n])
        made = {name for proto in protos for name in proto.output}
        raise _unsortable(path, protos[n], name, made)
    return [protos[n] for n in order], order == sorted(order)


def _unsortable(path: str, proto: Any, name: str, made: set[str]) -> ModelError:
    node = proto.name or proto.op_type
    if name in made:
        return ModelError(
            f"The graph of {path!r} has a cycle: the node {node!r} needs its own result.", _AGAIN
        )
    return ModelError(
        f"The node {node!r} of {path!r} uses {name!r}, which nothing computes.", _AGAIN
    )


def _subgraphs(proto: Any) -> Iterator[tuple[str, Any]]:
    """The subgraphs of a node, each with the name of its attribute."""
    for attribute in proto.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else []
        yield from ((attribute.name, graph) for graph in (*graphs, *attribute.graphs))


def _inputs_of(proto: Any) -> tuple[str, ...]:
    """The values that a node uses, those of its subgraphs included."""
    names = dict.fromkeys(filter(None, proto.input))
    for _, graph in _subgraphs(proto):
        names |= dict.fromkeys(_free_names(graph))
    return tuple(names)


def _free_names(graph: Any) -> Iterator[str]:
    """The values that a subgraph uses and that come from outside."""
    own = {value.name for value in graph.input} | {t.name for t in graph.initializer} | {""}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in _inputs_of(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _metadata(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}
