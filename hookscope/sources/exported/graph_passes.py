"""Passes over the graph of an exported program, before it is unflattened.

``remove_alias_outputs``: ``x.to(torch.float32)`` returns ``x`` itself if that is its dtype. All
later uses of ``x`` are then uses of the result, even outside of the module that called it, such as
the residual around an RMSNorm. Unflattening would take the input of the norm for its output.

``inline_grad_blocks``: a block under ``torch.no_grad()``, one operator, would hide its modules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Set
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect, map_aggregate

from hookscope.tensors.torch_internals import set_grad_enabled

_CASTS = {
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
    torch.ops.aten.to.device,
    torch.ops.aten.to.other,
    torch.ops.aten.type_as.default,
    torch.ops.aten.flatten.using_ints,
}
_DROPOUTS = {
    torch.ops.aten.dropout.default,
    torch.ops.aten.feature_dropout.default,
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
}


def remove_alias_outputs(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return an equivalent program in which no input of a module is one of several outputs."""
    aliases = [node.name for node in program.graph.nodes if _is_alias(node)]
    if not aliases:
        return program
    own = copy.copy(program)
    own._graph_module = copy.deepcopy(program.graph_module)
    nodes = {node.name: node for node in own.graph.nodes}
    renamed = dict(_move_uses([nodes[name] for name in aliases]))
    if renamed:
        own._graph_signature = copy.deepcopy(program.graph_signature)
        for spec in own._graph_signature.output_specs:
            for old, new in renamed.items():
                if getattr(spec.arg, "name", None) == old:
                    spec.arg.name = new
    own.graph.lint()
    return own


def _move_uses(aliases: list[fx.Node]) -> Iterator[tuple[str, str]]:
    """Move the uses; yield the old and the new name of each that was an output of the program."""
    for node in aliases:
        for call in _calls(node):
            source = _origin(node, call)
            others = (_origin(other, call) for other in _escaping(node.graph, call))
            if call in _calls(source) or all(call not in _calls(other) for other in others):
                continue
            for user in [user for user in node.users if call not in _calls(user)]:
                user.replace_input_with(node, source)
                if user.op == "output":
                    yield node.name, source.name


def _is_alias(node: fx.Node) -> bool:
    """Whether the operator returns its first input."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or node.target not in _CASTS | _DROPOUTS:
        return False
    if node.target in _DROPOUTS:
        return node.args[2] is False
    before, after = (x.meta.get("val") for x in (source, node))
    return (
        isinstance(before, Tensor)
        and isinstance(after, Tensor)
        and (before.dtype, before.device, before.layout)
        == (after.dtype, after.device, after.layout)
        and before.shape == after.shape
        and (before.layout is not torch.strided or before.stride() == after.stride())
        and True not in node.args[2:]
        and not node.kwargs.get("copy")
    )


def _calls(node: fx.Node) -> Set[Any]:
    """The paths of the module calls that contain the node."""
    return {path for path, _ in node.meta.get("nn_module_stack", {}).values()}


def _escaping(graph: fx.Graph, call: str) -> Iterator[fx.Node]:
    """The nodes in a call with results that are used outside of it."""
    for node in graph.nodes:
        if call in _calls(node) and any(call not in _calls(user) for user in node.users):
            yield node


def _origin(node: fx.Node, call: str) -> fx.Node:
    """The node that computed the result, or the input of the call if the call returns it."""
    while call in _calls(node) and _is_alias(node):
        node = cast(fx.Node, node.args[0])
    return node


_BLOCK = torch.ops.higher_order.wrap_with_set_grad_enabled


@has_side_effect
def switch_autograd(enabled: bool) -> bool:
    """Switch autograd on or off; return the previous state."""
    before = torch.is_grad_enabled()
    set_grad_enabled(enabled)
    return before


def inline_grad_blocks(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return an equivalent program with its blocks inlined; ``program`` is not changed."""
    if not any(node.target is _BLOCK for node in program.graph.nodes):
        return program
    own = copy.copy(program)
    own._graph_module = copy.deepcopy(program.graph_module)
    _inline_all(own._graph_module)
    own.graph.lint()
    return own


def _inline_all(owner: fx.GraphModule) -> None:
    for node in list(owner.graph.nodes):
        if node.target is _BLOCK:
            _inline(owner, node)


def _inline(owner: fx.GraphModule, block: fx.Node) -> None:
    enabled, subgraph, *args = block.args
    subgraph = cast(fx.Node, subgraph)
    inside = getattr(owner, str(subgraph.target))
    _inline_all(inside)
    body = inside.graph
    inner = [node for node in body.nodes if node.op == "call_function"]
    if len(inner) + len(args) + 1 < len(body.nodes):
        return  # the block has other nodes than operators
    copies: dict[fx.Node, Any] = dict(zip(body.nodes, args, strict=False))
    with owner.graph.inserting_before(block):
        before = owner.graph.call_function(switch_autograd, (enabled,))
        for node in inner:
            copies[node] = owner.graph.node_copy(node, copies.__getitem__)
        after = owner.graph.call_function(switch_autograd, (before,))
    for node in (before, after):
        node.meta["nn_module_stack"] = _shared_stack([*inner, block])
    [output] = body.output_node().args
    results = map_aggregate(output, lambda x: copies[x] if isinstance(x, fx.Node) else x)
    for item in list(block.users):
        item.replace_all_uses_with(results[item.args[1]])
        owner.graph.erase_node(item)
    owner.graph.erase_node(block)
    if not subgraph.users:
        owner.graph.erase_node(subgraph)


def _shared_stack(nodes: list[fx.Node]) -> dict[str, Any]:
    """The modules that contain all of the nodes, from the outermost."""
    stacks = [list(node.meta.get("nn_module_stack", {}).items()) for node in nodes]
    stacks = [stack for stack in stacks if stack]  # nodes that export inserted are in no module
    shared: dict[str, Any] = {}
    for entries in zip(*stacks, strict=False):
        if any(entry != entries[0] for entry in entries):
            break
        shared.update([entries[0]])
    return shared
