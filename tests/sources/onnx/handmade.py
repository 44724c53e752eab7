"""ONNX files written node by node, and values of a graph as a bare session of onnxruntime gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Value = tuple[str, int, Sequence[int | str | None] | None]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """A model of these nodes."""
    graph = helper.make_graph(
        list(nodes),
        "handmade",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )
    options = {"opset_imports": [helper.make_opsetid("", 20)], "ir_version": 10} | options
    return helper.make_model(graph, **options)


def two_layers(rows: int | str = 2) -> onnx.ModelProto:
    """``relu(x w + b)``, with nodes that have names and no modules."""
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.standard_normal((3, 4), np.float32),
        "b": rng.standard_normal(4, np.float32),
    }
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="first/MatMul"),
            helper.make_node("Add", ["xw", "b"], ["sum"], name="first/Add"),
            helper.make_node("Relu", ["sum"], ["y"]),
        ],
        [("x", FLOAT, [rows, 3])],
        [("y", FLOAT, [rows, 4])],
        tensors,
    )


def saved(proto: onnx.ModelProto, path: Path) -> str:
    path.write_bytes(proto.SerializeToString())
    return str(path)


def session_values(
    path: str | os.PathLike[str],
    feeds: Mapping[str, np.ndarray[Any, Any]],
    names: Sequence[str],
    level: str = "ORT_DISABLE_ALL",
) -> dict[str, np.ndarray[Any, Any]]:
    """Values of the graph, which are added to its outputs by hand."""
    proto = onnx.load(path)
    known = {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
