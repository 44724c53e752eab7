"""Which module has which tensor of an ONNX file, under which name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hookscope.sources.onnx.dtypes import torch_dtype
from hookscope.sources.onnx.graph import Graph, GraphNode, Initializer
from hookscope.sources.onnx.scopes import is_tensor_name

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
_BUFFERS = ("running_mean", "running_var", "_scale", "_zero_point")
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_TARGET = re.compile(r": (PARAMETER|BUFFER) target='([^']+)'")
_LONGEST = 1 << 24  # characters of the signature that are searched
_DEQUANTIZE = "DequantizeLinear"


@dataclass(frozen=True)
class AssignedWeight:
    """A tensor of the file that a module uses."""

    module: str
    name: str
    initializer: str
    is_parameter: bool


def exported_tensors(metadata: Mapping[str, str]) -> dict[str, str]:
    r"""Return ``PARAMETER`` or ``BUFFER`` for each name in the model that was exported.

    >>> exported_tensors({_SIGNATURE: "# inputs\np_fc: PARAMETER target='fc.weight'\n"})
    {'fc.weight': 'PARAMETER'}
    """
    found = _TARGET.findall(metadata.get(_SIGNATURE, "")[:_LONGEST])
    return {name: kind for kind, name in found}


def assign_weights(graph: Graph, metadata: Mapping[str, str]) -> Iterator[AssignedWeight]:
    """Yield the tensors of the file by the modules that use them, in execution order.

    Sizes, indices and single numbers are left out, unless they were parameters or buffers.
    """
    kinds = exported_tensors(metadata)
    taken: dict[tuple[str, str], str] = {}
    for node in graph.nodes:
        if node.is_plain or node.scope is None:
            continue
        module = node.scope.levels[-1].name if node.scope.levels else ""
        stored = node.op == _DEQUANTIZE and node.inputs[0] in graph.initializers
        for initializer, argument in _uses(graph, node, "weight" if stored else ""):
            kind = kinds.get(initializer.name)
            if kind is None and not _is_weight(initializer, argument):
                continue
            name = _name_in(initializer.name, argument)
            base, count = name, 0
            while taken.setdefault((module, name), initializer.name) != initializer.name:
                count += 1
                name = f"{base}_{count}"
            is_buffer = kind == "BUFFER" or (kind is None and argument.endswith(_BUFFERS))
            yield AssignedWeight(module, name, initializer.name, not is_buffer)


def initializers_of(graph: Graph, node: GraphNode) -> list[str]:
    """Return the names of the tensors that a node uses, directly or through plain nodes."""
    return [initializer.name for initializer, _ in _uses(graph, node, "")]


def _uses(graph: Graph, node: GraphNode, above: str) -> Iterator[tuple[Initializer, str]]:
    """The tensors that a node uses, directly or through plain nodes, with their roles in it."""
    roles = _ARGUMENTS.get(node.op, ())
    for n, name in enumerate(node.inputs):
        role = roles[n] if n < len(roles) else ""
        argument = f"{above}{role}" if node.op == _DEQUANTIZE else above or role
        if name in graph.initializers:
            yield graph.initializers[name], argument
        elif name in graph.producers and graph.producers[name].is_plain:
            inner = graph.producers[name]
            if inner.op not in ("Shape", "Size"):
                yield from _uses(graph, inner, argument)


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
