"""The shapes and types of the values in a graph, inferred without running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from hookscope.errors import ModelError
from hookscope.sources.onnx.dtypes import dtype_bits
from hookscope.sources.onnx.model_file import (
    FileInput,
    OnnxFile,
    describe_value,
    import_onnx,
    without_values,
)
from hookscope.sources.onnx.session import GraphSession

Shape = tuple[int, ...]

WINDOW = 1 << 30  # bytes of values of one run of the graph
_ENTRY = 8  # bytes of an entry of unknown type, at most


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
        """Return type (a ``TensorProto.DataType``) and shape of values, where they are known."""
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


class RecordedValues:
    """The values of one run, computed in windows on demand, and let go after their last use."""

    def __init__(
        self,
        session: GraphSession,
        shapes: ValueShapes,
        feeds: Mapping[str, Tensor],
        order: Sequence[str],
        depths: Mapping[str, int] | None = None,
    ) -> None:
        self._session, self._feeds = session, feeds
        self._uses = Counter(order)
        self._values: dict[str, Any] = dict(feeds)
        groups: dict[int, list[str]] = {}
        for name in self._uses:
            groups.setdefault((depths or {}).get(name, 0), []).append(name)
        self._windows = [w for names in groups.values() for w in self._divide(shapes, names)]
        if self._windows:  # now, so that the time of the run is the model's and not a part's
            self._values |= session.run(feeds, self._windows.pop(0))

    def take(self, name: str) -> Any:
        """Return a value."""
        if name not in self._values:
            window = next((names for names in self._windows if name in names), None)
            if window is None:
                raise ModelError(f"The value {name!r} of the graph cannot be computed.", "")
            self._windows.remove(window)
            self._values |= self._session.run(self._feeds, window)
        value = self._values[name]
        self._uses[name] -= 1
        if self._uses[name] <= 0 and name not in self._feeds:
            del self._values[name]
        return value

    def _divide(self, shapes: ValueShapes, names: Sequence[str]) -> list[list[str]]:
        """The names in groups whose values have at most ``WINDOW`` bytes, or one name."""
        names = [name for name in names if name not in self._feeds]
        inputs: dict[str, Shape] = {name: tuple(t.shape) for name, t in self._feeds.items()}
        found = shapes.of(names, inputs)
        known = {n: math.prod(s) * (dtype_bits(d) or 64) // 8 for n, (d, s) in found.items()}
        if unknown := [name for name in names if name not in known]:
            with suppress(ModelError):  # a list of tensors has no size; the run tells all else
                counts = self._session.measure(self._feeds, unknown)
                known |= {name: count * _ENTRY for name, count in counts.items()}
        groups: list[list[str]] = []
        size = 0
        for name in names:
            size += known.get(name, 0)
            if not groups or size > WINDOW:
                groups.append([])
                size = known.get(name, 0)
            groups[-1].append(name)
        return groups
