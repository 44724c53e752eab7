"""The graph that onnxruntime gets: the part of a file that computes some of its values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from hookscope.sources.onnx.graph import Graph
from hookscope.sources.onnx.model_file import OnnxFile

COUNT = "hookscope.size.{}"  # the number of entries of a value
_RECORDED = "hookscope.value.{}"  # a value of float16 that is recorded
_HALF = 10  # FLOAT16 in TensorProto.DataType
_DTYPES = ("to", "dtype", "output_dtype")  # attributes that are a type
_INT = 2  # in AttributeProto.AttributeType
# Not a part of what onnxruntime needs.
_UNUSED = ("functions", "metadata_props", "training_info")


def graph_with_outputs(
    file: OnnxFile, graph: Graph, names: Collection[str], half: Collection[str]
) -> tuple[Any, list[str]]:
    """Return a model that computes these values, and the outputs of it that they are.

    onnxruntime has no kernel of float16 for most operators. It computes these in float32 and rounds
    to float16 where another kind of node, or an output of the graph, needs it. So an output between
    two such nodes would change the values after it. A sum of one value is a node of that kind that
    changes nothing. It becomes the output instead, with all other nodes and outputs as in the file.
    """
    source = file.proto
    counted = {COUNT.format(name): name for name in graph.producers}
    targets = frozenset(counted.get(name, name) for name in names)
    kept = targets | frozenset(graph.outputs if half else ())
    needed = set(range(len(graph.nodes))) if half else graph.ancestors(kept)
    by_output = {name: node.index for node in graph.nodes for name in node.outputs}
    proto = type(source)()
    for field, value in source.ListFields():
        if field.name not in ("graph", *_UNUSED):
            _set(proto, field, value)
    for field, value in source.graph.ListFields():
        if field.name not in ("node", "output", "initializer", "value_info", "metadata_props"):
            _set(proto.graph, field, value)
    nodes = [
        node
        for node in source.graph.node
        if any(by_output.get(name) in needed for name in node.output)
    ]
    proto.graph.node.extend(nodes)
    used = {name for index in needed for name in graph.nodes[index].inputs} | kept
    unused = {t.name for t in source.graph.initializer if t.name not in used}
    proto.graph.initializer.extend(t for t in source.graph.initializer if t.name in used)
    # Old files list them as inputs too. Without its tensor, such an input would have to be given.
    inputs = [value for value in proto.graph.input if value.name not in unused]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    types = {value.name: value for value in source.graph.output}
    outputs = [
        _RECORDED.format(name) if name in half and name not in types else name for name in names
    ]
    for name in dict.fromkeys([*outputs, *(graph.outputs if half else ())]):
        if name in types:
            proto.graph.output.append(types[name])
        else:
            proto.graph.output.add(name=name)
    for name, output in zip(names, outputs, strict=True):
        if name in counted:
            proto.graph.node.add(op_type="Size", input=[counted[name]], output=[name])
        elif name != output:
            proto.graph.node.add(op_type="Sum", name=output, input=[name], output=[output])
    return proto, outputs


def mentions_float16(graph: Any) -> bool:
    """Whether a ``GraphProto`` has a value of float16, as far as can be seen without inference."""
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(value.type.tensor_type.elem_type == _HALF for value in values)
        or any(tensor.data_type == _HALF for tensor in graph.initializer)
        or any(map(_makes_float16, _attributes(graph)))
    )


def _makes_float16(attribute: Any) -> bool:
    """Whether an attribute is the type float16, or has a tensor or a graph with it."""
    is_type = attribute.type == _INT and attribute.name in _DTYPES and attribute.i == _HALF
    graphs = (attribute.g, *attribute.graphs)
    tensors = (attribute.t, *attribute.tensors)
    return (
        is_type
        or any(tensor.data_type == _HALF for tensor in tensors)
        or any(map(mentions_float16, graphs))
    )


def _attributes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield from node.attribute


def _set(message: Any, field: Any, value: Any) -> None:
    if isinstance(value, str | int | float | bytes):
        setattr(message, field.name, value)
    elif hasattr(value, "extend") or hasattr(value, "__len__"):
        getattr(message, field.name).extend(value)
    else:
        getattr(message, field.name).CopyFrom(value)
