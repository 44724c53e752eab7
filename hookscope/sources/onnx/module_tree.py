"""The tree of modules of an ONNX file, and which of them has which tensor under which name."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hookscope.sources.onnx.dtypes import torch_dtype
from hookscope.sources.onnx.graph import Graph, GraphNode, Initializer
from hookscope.sources.onnx.graph_modules import GraphModel, GraphPart, part_class
from hookscope.sources.onnx.model_file import OnnxFile
from hookscope.sources.onnx.scopes import NodeScope, is_tensor_name
from hookscope.specs.module_names import ancestors, ancestors_of, begins_with
from hookscope.specs.patterns import ROOT

_ZERO_POINTS = ("input_zero_point", "weight_zero_point")
_QLINEAR = (
    *("input", "input_scale", "input_zero_point"),
    *("weight", "weight_scale", "weight_zero_point"),
    *("output_scale", "output_zero_point", "bias"),
)
# The names of an operator's inputs, as the modules of torch call them.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), ("input", "weight", "bias")),
    **dict.fromkeys(
        ("InstanceNormalization", "LayerNormalization", "GroupNormalization"),
        ("input", "weight", "bias"),
    ),
    "BatchNormalization": ("input", "weight", "bias", "running_mean", "running_var"),
    **dict.fromkeys(("MatMul", "Mul"), ("weight", "weight")),
    "Add": ("bias", "bias"),
    "Gather": ("weight", "indices"),
    "PRelu": ("input", "weight"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("input", "weight_ih", "weight_hh", "bias")),
    "DequantizeLinear": ("", "_scale", "_zero_point"),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), _QLINEAR),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), ("input", "weight", *_ZERO_POINTS)),
}
# Inputs by their numbers that are settings, whatever numbers they hold.
_SETTINGS: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2, 3), "Upsample": (1,), "OneHot": (1, 2)}
_BUFFERS = ("running_mean", "running_var", "_scale", "_zero_point")
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_TARGET = re.compile(r": (PARAMETER|BUFFER) target='([^']+)'")
_LONGEST = 1 << 24  # characters of the signature that are searched
_DEQUANTIZE = "DequantizeLinear"

_FOLDING = ("Conv", "ConvTranspose", "Gemm")
_RULE = "FuseBatchNorm"  # part of the names of the exporter's rules
_CHANGED = re.compile(r"onnx::Conv(Transpose)?_\d+")  # a weight that is not one of the model's own
_FOLDED = "folded into {} by the exporter"
_FOLDED_INTO = re.compile(re.escape(_FOLDED).replace(re.escape("{}"), "(.+)"))
REMOVED = "the exporter removed it, or computed its result beforehand"
_REPLACED = "its nodes do not name it: the exporter or a later tool removed or replaced it"
CHANGED = "weights changed by the exporter, as when it folds a batch norm into them"
_UNKNOWN, _MODEL = "Module", "Graph"
_CONTAINER = "a container: only the modules inside it have nodes"
_INSIDE = "it is inside a subgraph of {op}, whose values are not outputs of the graph"


@dataclass(frozen=True)
class AssignedWeight:
    """A tensor of the file that a module uses."""

    module: str
    name: str
    initializer: Initializer
    is_parameter: bool


def exported_tensors(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return ``PARAMETER`` or ``BUFFER`` for each name in the model that was exported."""
    found = _TARGET.findall(metadata.get(_SIGNATURE, "")[:_LONGEST])
    return {name: kind for kind, name in found}


def assign_weights(graph: Graph, metadata: Mapping[str, str]) -> Iterator[AssignedWeight]:
    """Yield the tensors of the file, without sizes and indices, by the modules that use them."""
    kinds = exported_tensors(metadata)
    taken: dict[tuple[str, str], Initializer] = {}
    for node, graphs in graph.walk():
        if node.is_plain or node.scope is None:
            continue
        module = _module_of(node)
        is_stored = node.op == _DEQUANTIZE and _find_tensor(graphs, node.arguments[0]) is not None
        for initializer, argument in _uses(graphs, node, "weight" if is_stored else ""):
            kind = kinds.get(initializer.name)
            if kind is None and not _is_weight(initializer, argument):
                continue
            name = _name_in(initializer.name, argument)
            base, count = name, 0
            while taken.setdefault((module, name), initializer) is not initializer:
                count += 1
                name = f"{base}_{count}"
            is_buffer = kind == "BUFFER" or (kind is None and argument.endswith(_BUFFERS))
            yield AssignedWeight(module, name, initializer, not is_buffer)


def _find_tensor(graphs: Sequence[Graph], name: str) -> Initializer | None:
    """The tensor of that name in a graph or in those around it."""
    return next((graph.initializers[name] for graph in graphs if name in graph.initializers), None)


def _uses(
    graphs: Sequence[Graph], node: GraphNode, above: str = ""
) -> Iterator[tuple[Initializer, str]]:
    """The tensors that a node uses, directly or through plain nodes, with their roles in it."""
    roles = _ARGUMENTS.get(node.op, ())
    for n, name in enumerate(node.arguments):
        if n in _SETTINGS.get(node.op, ()):
            continue
        role = roles[n] if n < len(roles) else ""
        argument = f"{above}{role}" if node.op == _DEQUANTIZE else above or role
        tensor = _find_tensor(graphs, name)
        inner = next((g.producers[name] for g in graphs if name in g.producers), None)
        if tensor is not None:
            yield tensor, argument
        elif inner is not None and inner.is_plain and inner.op not in ("Shape", "Size"):
            yield from _uses(graphs, inner, argument)


def _is_weight(initializer: Initializer, argument: str) -> bool:
    """Whether a tensor of a name that the exporter does not list is a weight."""
    dtype = torch_dtype(initializer.dtype)
    if dtype is not None and dtype.is_floating_point:
        has_role = bool(argument) or is_tensor_name(initializer.name)
        return math.prod(initializer.shape) != 1 or (bool(initializer.shape) and has_role)
    return "weight" in argument or "bias" in argument or dtype is None


def _name_in(initializer: str, argument: str) -> str:
    """The name of a tensor in a module: that in the exported model, or its role."""
    if is_tensor_name(initializer):
        return initializer.rpartition(".")[2]
    return argument or re.sub(r"\W+", "_", initializer).strip("_") or "tensor"


def absent_modules(
    graph: Graph, metadata: Mapping[str, str], present: Container[str]
) -> dict[str, str]:
    """Return what became of each module with parameters or buffers that is not in the file."""
    users: dict[str, GraphNode] = {}
    for node, graphs in graph.walk():
        if node.scope is not None and not node.is_plain:
            for initializer, _ in _uses(graphs, node):
                users.setdefault(initializer.name, node)
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
    """Whether a convolution has unnamed weights, such as where a batch norm is folded into it."""
    weights = node.arguments[1:2]
    return node.op in ("Conv", "ConvTranspose") and any(map(_CHANGED.fullmatch, weights))


def cut_modules(absent: Mapping[str, str]) -> dict[str, str]:
    """Return the modules whose last operation, a convolution, is folded into a norm, and why.

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
    return [holder for holder in ancestors(name) if other and not begins_with(other, holder)]


def has_absorbed_norm(module: nn.Module) -> bool:
    """Whether a part of a file has weights that the exporter changed; see ``CHANGED``."""
    return getattr(module, "_hookscope_note", "") == CHANGED


def norm_that_absorbed(reason: str) -> str:
    """Return the module that another was folded into, by ``absent_modules``; empty if none."""
    match = _FOLDED_INTO.fullmatch(reason)
    return match[1] if match else ""


def build_modules(file: OnnxFile, graph: Graph, device: str) -> GraphModel:
    """Return the model of a file, without its program."""
    own: dict[str, list[GraphNode]] = {}  # of each module, without those of its children
    scopes: list[NodeScope] = []
    for node, _ in graph.walk():
        if node.scope is not None and not node.is_plain:
            scopes.append(node.scope)
            own.setdefault(_module_of(node), []).append(node)
    types = {level.name: level.type for scope in scopes for level in scope.levels if level.type}
    model_type = next((scope.model_type for scope in scopes if scope.model_type), _MODEL)
    root = part_class(model_type, GraphModel)()
    for level in (level for scope in scopes for level in scope.levels):
        nodes = own.get(level.name, [])
        operator = nodes[0].op if len(nodes) == 1 else _UNKNOWN
        _add(root, level.name, types.get(level.name) or operator)
    parts = {name: part for name, part in root.named_modules() if isinstance(part, GraphPart)}
    for name, reason in _uncalled(graph).items():
        parts[name]._hookscope_unavailable = reason
        parts[name]._hookscope_note = "" if reason == _CONTAINER else reason
    for name, nodes in own.items():
        parts[name]._onnx_operators = [node.op for node in nodes]
        if any(map(has_changed_weights, nodes)):
            parts[name]._hookscope_note = CHANGED
    _add_weights(file, graph, parts, device)
    assert isinstance(root, GraphModel)
    return root


def _module_of(node: GraphNode) -> str:
    """The innermost module of a node; an empty text is the model itself."""
    return node.scope.levels[-1].name if node.scope is not None and node.scope.levels else ""


def _uncalled(graph: Graph) -> dict[str, str]:
    """The modules that the running graph does not call, and why."""
    called: set[str] = set()
    reasons: dict[str, str] = {}
    for node in graph.nodes:
        if not node.is_plain and node.scope is not None:
            called.update(level.name for level in node.scope.levels)
        for inner, _ in (pair for subgraph in node.subgraphs for pair in subgraph.walk()):
            if not inner.is_plain and (name := _module_of(inner)):
                for module in (*ancestors(name), name):
                    reasons.setdefault(module, _INSIDE.format(op=node.op))
    reasons |= dict.fromkeys(ancestors_of(called) - {ROOT}, _CONTAINER)
    return {name: reason for name, reason in reasons.items() if name not in called}


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
    made: dict[int, Tensor] = {}  # by the object: subgraphs may use one name for several tensors
    for weight in assign_weights(graph, file.metadata):
        number = id(weight.initializer)
        if number not in made:
            tensor = file.tensor(weight.initializer.proto, device)
            if weight.is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=False)
            made[number] = tensor
        tensor = made[number]
        part = parts[weight.module]
        if isinstance(tensor, nn.Parameter):
            part._parameters[weight.name] = tensor
        else:
            part._buffers[weight.name] = tensor
