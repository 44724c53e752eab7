"""What became of modules that the exporter removed, as far as the file tells."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from torch import nn

from hookscope.sources.onnx.graph import Graph, GraphNode
from hookscope.sources.onnx.scopes import is_tensor_name
from hookscope.sources.onnx.weights import exported_tensors, initializers_of

_FOLDING = ("Conv", "ConvTranspose", "Gemm")
_RULE = "FuseBatchNorm"  # part of the names of the exporter's rules
_CHANGED = re.compile(r"onnx::Conv(Transpose)?_\d+")  # a weight that is none of the model's own

_FOLDED = "folded into {} by the exporter"
_FOLDED_INTO = re.compile(re.escape(_FOLDED).replace(re.escape("{}"), "(.+)"))
REMOVED = "the exporter removed it, or computed its result beforehand"
_REPLACED = "its nodes do not name it: the exporter or a later tool removed or replaced it"
CHANGED = "weights changed by the exporter, as when it folds a batch norm into them"


def absent_modules(
    graph: Graph, metadata: Mapping[str, str], present: Container[str]
) -> dict[str, str]:
    """Return what became of each module with parameters or buffers that is not in the file.

    Modules without parameters, such as dropout, leave no trace in a file.
    """
    users: dict[str, GraphNode] = {}
    for node in graph.nodes:
        if node.scope is not None and not node.is_plain:
            for initializer in initializers_of(graph, node):
                users.setdefault(initializer, node)
    names = dict.fromkeys((*exported_tensors(metadata), *filter(is_tensor_name, users)))
    unknown = _REPLACED if any(map(_is_of_another_tool, graph.nodes)) else REMOVED
    absent: dict[str, str] = {}
    for name in names:
        owner = name.rpartition(".")[0]
        if owner and owner not in present and absent.get(owner, unknown) == unknown:
            user = next((users[n] for n in users if n == name or n.startswith(f"{name}_")), None)
            absent[owner] = _fate(user) if user is not None else unknown
    return absent


def _is_of_another_tool(node: GraphNode) -> bool:
    """Whether a node has a module of its own because it names none."""
    levels = node.scope.levels if node.scope is not None else ()
    return bool(levels) and levels[-1].type == node.op


def _fate(node: GraphNode) -> str:
    """What became of a module whose tensor a node of another module uses."""
    levels = node.scope.levels if node.scope is not None else ()
    where = levels[-1].name if levels else "the model itself"
    is_norm = bool(levels) and "BatchNorm" in levels[-1].type
    if node.op in _FOLDING and (is_norm or _RULE in node.rules):
        return _FOLDED.format(where)
    return f"its weights are used in {where}"


def has_changed_weights(node: GraphNode) -> bool:
    """Whether a convolution has weights without a name, as after a folded batch normalization.

    The exporter based on TorchScript folds a batch normalization into the convolution before it,
    and gives the new weights new names.
    """
    weights = node.inputs[1:2]
    return node.op in ("Conv", "ConvTranspose") and any(map(_CHANGED.fullmatch, weights))


def cut_modules(absent: Mapping[str, str]) -> dict[str, str]:
    """Return the modules that lack their last operation in the file, and why.

    A convolution whose result goes to a batch norm outside of a module is the last operation of
    that module. Folded, it is no part of it any more.

    Example:
        >>> cut_modules({"stem.conv": _FOLDED.format("norm"), "body.0": _FOLDED.format("body.1")})
        {'stem': 'its last module stem.conv is folded into norm by the exporter'}
    """
    cut = {}
    for name, reason in absent.items():
        for holder in holders(name, norm_that_absorbed(reason)):
            cut[holder] = f"its last module {name} is {reason}"
    return cut


def holders(name: str, other: str) -> list[str]:
    """Return the modules that have ``name`` within them, but not ``other``; none if that is empty.

    >>> holders("a.b.conv", "a.norm"), holders("a.conv", "a.norm")
    (['a.b'], [])
    """
    parts = name.split(".")
    above = [".".join(parts[:n]) for n in range(1, len(parts))]
    return [holder for holder in above if other and not f"{other}.".startswith(f"{holder}.")]


def has_absorbed_norm(module: nn.Module) -> bool:
    """Whether a part of a file has weights that the exporter changed; see ``CHANGED``."""
    return getattr(module, "_hookscope_note", "") == CHANGED


def norm_that_absorbed(reason: str) -> str:
    """Return the module that another one was folded into, by what ``absent_modules`` says of it.

    >>> norm_that_absorbed(_FOLDED.format("layer1.0.bn1")), norm_that_absorbed(REMOVED)
    ('layer1.0.bn1', '')
    """
    match = _FOLDED_INTO.fullmatch(reason)
    return match[1] if match else ""
