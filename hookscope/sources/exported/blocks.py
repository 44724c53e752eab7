"""Blocks under ``torch.no_grad()``, which an export makes one operator each, opened up again.

Left closed, a block would hide its modules from hooks, and the last of them would stand for it all.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import has_side_effect, map_aggregate

_BLOCK = torch.ops.higher_order.wrap_with_set_grad_enabled


@has_side_effect
def switch_autograd(enabled: bool) -> bool:
    """Switch autograd on or off; return what it was."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(enabled)
    return before


def opened(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that does the same with its blocks opened; ``program`` stays as it is."""
    if not any(node.target is _BLOCK for node in program.graph.nodes):
        return program
    own = copy.copy(program)
    own._graph_module = copy.deepcopy(program.graph_module)
    _open_all(own._graph_module)
    own.graph.lint()
    return own


def _open_all(owner: fx.GraphModule) -> None:
    for node in list(owner.graph.nodes):
        if node.target is _BLOCK:
            _open(owner, node)


def _open(owner: fx.GraphModule, block: fx.Node) -> None:
    enabled, held, *args = block.args
    held = cast(fx.Node, held)
    inside = getattr(owner, str(held.target))
    _open_all(inside)
    body = inside.graph
    inner = [node for node in body.nodes if node.op == "call_function"]
    if len(inner) + len(args) + 1 < len(body.nodes):
        return  # it holds something else than plain operators
    known: dict[fx.Node, Any] = dict(zip(body.nodes, args, strict=False))
    with owner.graph.inserting_before(block):
        before = owner.graph.call_function(switch_autograd, (enabled,))
        for node in inner:
            known[node] = owner.graph.node_copy(node, known.__getitem__)
        after = owner.graph.call_function(switch_autograd, (before,))
    for node in (before, after):
        node.meta["nn_module_stack"] = _shared_stack([*inner, block])
    [output] = body.output_node().args
    results = map_aggregate(output, lambda x: known[x] if isinstance(x, fx.Node) else x)
    for item in list(block.users):
        item.replace_all_uses_with(results[item.args[1]])
        owner.graph.erase_node(item)
    owner.graph.erase_node(block)
    if not held.users:
        owner.graph.erase_node(held)


def _shared_stack(nodes: list[fx.Node]) -> dict[str, Any]:
    """The modules that all of the nodes are in, from the outermost."""
    stacks = [list(node.meta.get("nn_module_stack", {}).items()) for node in nodes]
    stacks = [stack for stack in stacks if stack]  # what export itself put in is in no module
    shared: dict[str, Any] = {}
    for entries in zip(*stacks, strict=False):
        if any(entry != entries[0] for entry in entries):
            break
        shared.update([entries[0]])
    return shared
