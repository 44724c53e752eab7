"""The shapes and types of the values in a graph, inferred without running it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hookscope.sources.onnx.dtypes import dtype_bits
from hookscope.sources.onnx.model_file import FileInput, OnnxFile, describe_value, without_values
from hookscope.sources.onnx.packages import import_onnx

Shape = tuple[int, ...]


class ValueShapes:
    """Infers shapes by the rules of the package onnx. Copies of a model share it."""

    def __init__(self, file: OnnxFile) -> None:
        self._file = file
        infos = [describe_value(value) for value in file.proto.graph.value_info]
        self._stored = _known([*infos, *file.outputs])
        self._inferred: dict[tuple[Shape, ...], dict[str, tuple[int, Shape]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> ValueShapes:
        return self

    def of(self, names: Iterable[str], inputs: Mapping[str, Shape]) -> dict[str, tuple[int, Shape]]:
        """Return type and shape of values for inputs of these shapes; unknown ones are left out.

        The type is a number of ``TensorProto.DataType``.
        """
        names = list(names)
        declared = {value.name: value.shape for value in self._file.inputs}
        fixed = all(declared.get(name) == shape for name, shape in inputs.items())
        if fixed and all(name in self._stored for name in names):
            known = self._stored
        else:
            known = self._infer(inputs)
        return {name: known[name] for name in names if name in known}

    def _infer(self, inputs: Mapping[str, Shape]) -> dict[str, tuple[int, Shape]]:
        key = tuple(inputs[name] for name in sorted(inputs))
        if key not in self._inferred:
            proto = without_values(self._file.proto)
            del proto.graph.value_info[:]
            for value in proto.graph.input:
                if value.name in inputs:
                    _set_shape(value, inputs[value.name])
            for value in proto.graph.output:
                value.type.tensor_type.ClearField("shape")
            shapes = import_onnx().shape_inference
            try:
                graph = shapes.infer_shapes(proto, data_prop=True).graph
            except Exception:  # unknown operators, among others: the run tells what is wrong
                return {}
            self._inferred = {key: _known(map(describe_value, (*graph.value_info, *graph.output)))}
        return self._inferred[key]


def size_in_bytes(dtype: int, shape: Shape) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * (dtype_bits(dtype) or 64) // 8


def _known(values: Iterable[FileInput]) -> dict[str, tuple[int, Shape]]:
    """The values of which all lengths are known."""
    known = {}
    for value in values:
        if value.dtype and value.shape is not None:
            shape = tuple(length for length in value.shape if isinstance(length, int))
            if len(shape) == len(value.shape):
                known[value.name] = (value.dtype, shape)
    return known


def _set_shape(value: Any, shape: Shape) -> None:
    kind = value.type.tensor_type
    kind.ClearField("shape")
    kind.shape.SetInParent()
    for length in shape:
        kind.shape.dim.add(dim_value=length)
