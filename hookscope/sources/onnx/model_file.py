"""An ONNX file, read without the values of its large tensors and checked; the packages for it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import ModelError
from hookscope.files.optional_packages import optional_package
from hookscope.sources.onnx import dtypes, file_tensors

SILENT = 4  # the severity of onnxruntime's log above which nothing is printed: errors are raised

log = logging.getLogger("hookscope")
_SMALL = 1024  # bytes; larger tensors are kept outside the graph
_MOST_NODES = 1_000_000  # of a graph after its functions are inlined
_MOST_BYTES = 1 << 28  # of the same, or a few times the bytes before
_MOST_GROWTH = 4
_AGAIN = "Write or download it again."


def import_onnx() -> ModuleType:
    """Return the package ``onnx``."""
    return _import("onnx")


def import_onnxruntime() -> ModuleType:
    """Return the package ``onnxruntime``, which prints nothing from then on."""
    runtime = _import("onnxruntime")
    runtime.set_default_logger_severity(SILENT)
    return runtime


def _import(name: str) -> ModuleType:
    with optional_package(name, "onnx", "An ONNX file"):
        module = importlib.import_module(name)
    return module


@dataclass(frozen=True)
class FileInput:
    """An input or an output of the graph."""

    name: str
    dtype: int
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file."""

    path: str
    proto: Any
    stored: Mapping[str, file_tensors.ExternalTensor]
    arrays: Mapping[str, np.ndarray[Any, Any]]
    inputs: tuple[FileInput, ...] = ()
    outputs: tuple[FileInput, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_files(self) -> tuple[str, ...]:
        """The files beside it that contain tensors."""
        return tuple(sorted({tensor.path for tensor in self.stored.values()}))

    def tensor(self, initializer: Any, device: str = "cpu") -> Tensor:
        """Return a ``TensorProto`` as a tensor: mapped from a data file; on meta without values."""
        shape, number = tuple(initializer.dims), initializer.data_type
        dtype = dtypes.torch_dtype(number)
        data: np.ndarray[Any, Any]
        if device == "meta" or number == dtypes.STRING:
            bits = dtypes.dtype_bits(number) or 0
            shape = shape if dtype else (file_tensors.byte_count(shape, bits),)
            return torch.empty(shape, dtype=dtype or torch.uint8, device="meta")
        if file_tensors.is_in_memory(initializer):
            data = self.arrays[initializer.name]
        elif initializer.data_location == file_tensors.EXTERNAL:
            place = file_tensors.ExternalData(self.path).locate(initializer)
            if not place.length:
                return torch.empty(shape, dtype=dtype or torch.uint8)
            data = np.memmap(place.path, np.uint8, "c", place.offset, place.length)
            if place.offset % 8:  # torch reads aligned memory only
                data = np.array(data)
        else:
            data = file_tensors.bytes_of(initializer)
        return dtypes.tensor_from_bytes(data, number, shape)


def read_file(path: str) -> OnnxFile:
    """Read and check an ONNX file."""
    onnx = import_onnx()
    proto = _parse(onnx, path)
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(f"{path!r} has no graph.", _AGAIN)
    _check_texts(path, proto.graph)
    if proto.functions:
        proto = _inline_functions(onnx, proto, path)
    file_tensors.move_constants(proto)
    stored, arrays = {}, file_tensors.move_sparse(path, proto)
    external = file_tensors.ExternalData(path)
    for tensor in proto.graph.initializer:
        if tensor.name in arrays:
            continue
        file_tensors.check_tensor(path, tensor)
        if tensor.data_location == file_tensors.EXTERNAL:
            stored[tensor.name] = external.locate(tensor)
        elif dtypes.is_numpy_dtype(tensor.data_type) and len(tensor.raw_data) > _SMALL:
            arrays[tensor.name] = file_tensors.move_out(tensor)
    for tensor in _inner_tensors(proto.graph):
        if tensor.data_location == file_tensors.EXTERNAL:
            place = external.locate(tensor)
            stored[f"{place.path}:{place.offset}"] = place
    _warn_of_faults(onnx, proto, path)
    initial = {tensor.name for tensor in proto.graph.initializer}
    return OnnxFile(
        path,
        proto,
        stored,
        arrays,
        tuple(describe_value(value) for value in proto.graph.input if value.name not in initial),
        tuple(map(describe_value, proto.graph.output)),
        {entry.key: entry.value for entry in proto.graph.metadata_props},
    )


def _parse(onnx: Any, path: str) -> Any:
    try:
        return onnx.load(path, load_external_data=False)
    except MemoryError as error:
        raise ModelError(f"{path!r} does not fit into memory.", "") from error
    except OSError as error:
        raise ModelError(f"{path!r} cannot be read: {error.strerror}.", "") from error
    except Exception as error:  # of protobuf, whose types differ between its releases
        raise ModelError(f"{path!r} is an ONNX file that is damaged or cut off.", _AGAIN) from error


def _inline_functions(onnx: Any, proto: Any, path: str) -> Any:
    """The model with the bodies of its own functions in place of their calls."""
    from onnx import inliner

    nodes, size = _inlined_size(proto)
    allowed = max(_MOST_BYTES, _MOST_GROWTH * proto.ByteSize())
    if nodes > _MOST_NODES or size > allowed:
        limit = f"{_MOST_NODES:,} nodes" if nodes > _MOST_NODES else f"{allowed:,} bytes"
        raise ModelError(
            f"The functions in {path!r} call each other so often that the graph would have more"
            f" than {limit}.",
            _AGAIN,
        )
    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:
        raise ModelError(
            f"The functions in {path!r} cannot be read: {first_line(error)}", _AGAIN
        ) from error


def _inlined_size(proto: Any) -> tuple[int, int]:
    """The nodes of the graph with its functions inlined, at most one too many, and their bytes."""
    # Functions that call themselves count as nothing: the inliner finds them.
    bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
    counts: dict[tuple[str, str, str], tuple[int, int]] = {}

    def count(nodes: Any) -> tuple[int, int]:
        total = size = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in bodies and key not in counts:
                counts[key] = 0, 0
                counts[key] = count(bodies[key])
            parts = [counts[key] if key in counts else (1, node.ByteSize())]
            for attribute in node.attribute:
                parts += [count(inner.node) for inner in (attribute.g, *attribute.graphs)]
            total += sum(nodes for nodes, _ in parts)
            size += sum(bytes_ for _, bytes_ in parts)
        return min(total, _MOST_NODES + 1), size

    try:
        return count(proto.graph.node)
    except RecursionError:
        return _MOST_NODES + 1, 0


def _inner_tensors(graph: Any) -> Iterator[Any]:
    """The tensors in attributes and subgraphs, which may be external too."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from inner.initializer
                yield from _inner_tensors(inner)


def _warn_of_faults(onnx: Any, proto: Any, path: str) -> None:
    """Log a fault that the checker of the package onnx finds, which onnxruntime may accept."""
    try:
        onnx.checker.check_model(without_values(proto))
    except Exception as error:  # of several types
        log.warning("%s: the checker of onnx finds a fault in it: %s", path, first_line(error))


def _check_texts(path: str, graph: Any) -> None:
    """Raise ModelError if a name is not text: protobuf returns bytes for it."""
    tensors = [tensor.name for tensor in graph.initializer]
    values = [value.name for value in (*graph.input, *graph.output, *graph.value_info)]
    values += [text for entry in graph.metadata_props for text in (entry.key, entry.value)]
    for value in (*graph.input, *graph.output, *graph.value_info):
        values += [length.dim_param for length in value.type.tensor_type.shape.dim]
    for tensor in graph.initializer:
        values += [text for entry in tensor.external_data for text in (entry.key, entry.value)]
    for node in graph.node:
        properties = [text for entry in node.metadata_props for text in (entry.key, entry.value)]
        values += [node.name, node.op_type, node.domain, *node.input, *node.output, *properties]
        values += [attribute.name for attribute in node.attribute]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _check_texts(path, inner)
    if not all(isinstance(text, str) and "\0" not in text for text in (*tensors, *values)):
        raise ModelError(f"{path!r} is an ONNX file that is damaged: a name is not text.", _AGAIN)


def without_values(proto: Any) -> Any:
    """Return a copy with inputs for external initializers, which onnx would look for elsewhere."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    kept = [
        tensor for tensor in copy.graph.initializer if tensor.data_location != file_tensors.EXTERNAL
    ]
    inputs = {value.name for value in copy.graph.input}
    for tensor in copy.graph.initializer:
        if tensor.data_location == file_tensors.EXTERNAL and tensor.name not in inputs:
            value = copy.graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
            for length in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=length)
    tensors = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(tensors)
    return copy


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, with a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def describe_value(value: Any) -> FileInput:
    """Return name, type and shape of a ``ValueInfoProto``."""
    if not value.type.HasField("tensor_type"):
        return FileInput(value.name, 0, None)
    kind = value.type.tensor_type
    shape: tuple[int | str, ...] | None = None
    if kind.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param
            for d in kind.shape.dim
        )
    return FileInput(value.name, kind.elem_type, shape)
