"""Builds the tree of modules of an ONNX file, with the tensors of the file as their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from hookscope.sources.onnx.absent_modules import CHANGED, has_changed_weights
from hookscope.sources.onnx.graph import Graph, GraphNode
from hookscope.sources.onnx.graph_modules import GraphModel, GraphPart, part_class
from hookscope.sources.onnx.model_file import OnnxFile
from hookscope.sources.onnx.scopes import NodeScope
from hookscope.sources.onnx.weights import assign_weights

_UNKNOWN, _MODEL = "Module", "Graph"
_INSIDE = "it is inside a subgraph of {op}, whose values are no outputs of the graph"


def build_modules(file: OnnxFile, graph: Graph, device: str) -> GraphModel:
    """Return the model of a file, without its program."""
    scopes = list(_scopes(graph))
    types = {level.name: level.type for scope, _ in scopes for level in scope.levels if level.type}
    model_type = next((scope.model_type for scope, _ in scopes if scope.model_type), _MODEL)
    own = _own_nodes(graph)
    root = part_class(model_type, GraphModel)()
    for scope, reason in scopes:
        for level in scope.levels:
            nodes = own.get(level.name, [])
            operator = nodes[0].op if len(nodes) == 1 else _UNKNOWN
            part = _add(root, level.name, types.get(level.name) or operator)
            if reason and not nodes and not part._modules:
                part._hookscope_unavailable = part._hookscope_note = reason
    parts = {name: part for name, part in root.named_modules() if isinstance(part, GraphPart)}
    for name, nodes in own.items():
        parts[name]._onnx_operators = [node.op for node in nodes]
        if any(map(has_changed_weights, nodes)):
            parts[name]._hookscope_note = CHANGED
    _add_weights(file, graph, parts, device)
    assert isinstance(root, GraphModel)
    return root


def _scopes(graph: Graph) -> Iterator[tuple[NodeScope, str]]:
    """The scope of each node, and why its modules are not called if it is in a subgraph."""
    for node in graph.nodes:
        if node.scope is not None and not node.is_plain:
            yield node.scope, ""
        for scope in node.inner:
            yield scope, _INSIDE.format(op=node.op)


def _own_nodes(graph: Graph) -> dict[str, list[GraphNode]]:
    """The nodes of each module that belong to none of its children."""
    own: dict[str, list[GraphNode]] = {}
    for node in graph.nodes:
        if not node.is_plain and node.scope is not None:
            levels = node.scope.levels
            own.setdefault(levels[-1].name if levels else "", []).append(node)
    return own


def _add(root: GraphPart, path: str, type_name: str) -> GraphPart:
    """The part of that name, added with those above it if it is new."""
    parent: nn.Module = root
    names = path.split(".")
    for n, name in enumerate(names):
        child = parent._modules.get(name)
        if child is None:
            child = part_class(type_name if n == len(names) - 1 else _UNKNOWN)()
            parent._modules[name] = child  # add_module rejects names such as "type"
        parent = child
    assert isinstance(parent, GraphPart)
    if type(parent).__name__ == _UNKNOWN != type_name:
        parent.__class__ = part_class(type_name)  # it was added before as the parent of another
    return parent


def _add_weights(file: OnnxFile, graph: Graph, parts: Mapping[str, GraphPart], device: str) -> None:
    protos = {tensor.name: tensor for tensor in file.proto.graph.initializer}
    made: dict[str, Tensor] = {}
    for weight in assign_weights(graph, file.metadata):
        if weight.initializer not in made:
            tensor = file.tensor(protos[weight.initializer], device)
            if weight.is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=False)
            made[weight.initializer] = tensor
        tensor = made[weight.initializer]
        part = parts[weight.module]
        if isinstance(tensor, nn.Parameter):
            part._parameters[weight.name] = tensor
        else:
            part._buffers[weight.name] = tensor
