"""The tensors of an ONNX file: checked, and all in one list, whatever way the file stores them.

Some tools write weights to ``Constant`` nodes, and some only the entries that are not zero. Large
tensors may be in files beside it, where a crafted path or length could lead anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from blake3 import blake3

from hookscope.errors import ModelError
from hookscope.escapes import encodable
from hookscope.files.hashes import blake3_of
from hookscope.files.own_folder import homes_of, why_not_opened
from hookscope.files.words import shape_text
from hookscope.sources.onnx import dtypes
from hookscope.stores.weights.tensor_location import is_shape

_LONGEST_LOCATION = 4096  # characters
_COMPLETE = "Keep the ONNX file and its data files in one folder, or export the model again."

EXTERNAL = 1  # TensorProto.EXTERNAL
_IN_MEMORY = "hookscope.weights"  # the location of tensors that a session gets from memory
_RAW = "raw_data"
_FLOAT, _INT64, _BOOL = 1, 7, 9  # in TensorProto.DataType
_SIGNED = (3, 5, 6, _INT64)  # types of indices
_LISTED_INPUTS = 4  # from this version on, a file does not list its tensors as inputs too
_LARGEST = 1 << 32  # bytes of a dense tensor whose file may be tiny
_AGAIN = "Write or download it again."
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ExternalTensor:
    """Where the values of a tensor are."""

    path: str
    offset: int
    length: int


class ExternalData:
    """Finds tensors in the files beside an ONNX file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}  # of the files that were checked

    def locate(self, tensor: Any) -> ExternalTensor:
        """Return where the values of an external tensor are."""
        size = byte_count(tensor.dims, dtypes.dtype_bits(tensor.data_type) or 0)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        target = os.path.join(os.path.dirname(self._path), location)
        if location not in self._sizes:
            self._sizes[location] = self._checked_size(tensor.name, location, target)
        try:
            offset, length = (int(entries.get(k, d)) for k, d in (("offset", 0), ("length", size)))
        except ValueError:
            offset = length = -1
        if offset < 0 or length != size or offset + length > self._sizes[location]:
            raise ModelError(
                f"The tensor {tensor.name!r} of {self._path!r} has {size:,} bytes, which are not in"
                f" {location!r}.",
                _COMPLETE,
            )
        return ExternalTensor(target, offset, length)

    def _checked_size(self, name: str, location: str, target: str) -> int:
        """The size of a data file, which must be in the folder."""
        if not location or _leaves(location) or why_not_opened(target, *homes_of(self._path)):
            raise ModelError(
                f"The tensor {name!r} of {self._path!r} is in {location[:200]!r}, which is not a"
                " file in its folder.",
                "Such a path is not opened. Export the model again, from a source that you trust.",
            )
        if not os.path.isfile(target):
            raise ModelError(
                f"{self._path!r} needs {location!r} in its folder, which does not exist.", _COMPLETE
            )
        return os.path.getsize(target)


def _leaves(location: str) -> bool:
    """Whether a path is absolute or leads upwards, on any system, or is not a path."""
    windows, posix = PureWindowsPath(location), PurePosixPath(location)
    leads_away = windows.drive or windows.root or posix.root or ".." in windows.parts
    return bool(leads_away) or "\0" in location or len(location) > _LONGEST_LOCATION


def hash_of(path: str, files: Iterable[str]) -> str:
    """Return the BLAKE3 of a file; with data files, of the output of ``b3sum FILE DATA ...``."""
    others = sorted(set(files))
    if not others:
        return blake3_of(path)
    folder = os.path.dirname(path) or "."
    names = (os.path.relpath(file, folder).replace(os.sep, "/") for file in (path, *others))
    lines = zip((path, *others), names, strict=True)
    listing = "".join(f"{blake3_of(file)}  {name}\n" for file, name in lines)
    return blake3(encodable(listing).encode()).hexdigest()


def byte_count(shape: Iterable[int], bits: int) -> int:
    """Return the bytes of a tensor, in which entries of under 8 bits share bytes."""
    return math.ceil(math.prod(shape) * bits / 8)


def move_constants(proto: Any) -> None:
    """Make the tensors of ``Constant`` nodes initializers, but not sizes, indices and outputs."""
    graph = proto.graph
    taken = {value.name for value in (*graph.input, *graph.output)}
    taken |= {tensor.name for tensor in graph.initializer}
    taken |= {tensor.values.name for tensor in graph.sparse_initializer}
    kept = [node for node in graph.node if not _is_moved(proto, node, taken)]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def _is_moved(proto: Any, node: Any, taken: set[str]) -> bool:
    """Whether a node is a ``Constant`` whose tensor is now an initializer."""
    constant = _constant(node)
    is_free = taken.isdisjoint(node.output)
    taken.update(node.output)
    if constant is None or not is_free:
        return False
    name, graph = node.output[0], proto.graph
    if _is_sparse(constant):
        sparse = graph.sparse_initializer.add()
        sparse.CopyFrom(constant)
        sparse.values.name = name
        return True  # such files are of a later version
    tensor = graph.initializer.add()
    tensor.CopyFrom(constant)
    tensor.name = name
    if proto.ir_version < _LISTED_INPUTS:
        value = graph.input.add(name=name)
        value.type.tensor_type.elem_type = tensor.data_type
        value.type.tensor_type.shape.SetInParent()
        for length in tensor.dims:
            value.type.tensor_type.shape.dim.add(dim_value=length)
    return True


def _constant(node: Any) -> Any:
    """The tensor of a ``Constant``, dense or sparse; None if it holds sizes, indices or texts."""
    if node.op_type != "Constant" or node.domain or len(node.attribute) != 1:
        return None
    if len(node.output) != 1 or not node.output[0]:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value_floats":
        floats = attribute.floats
        return type(attribute.t)(data_type=_FLOAT, dims=[len(floats)], float_data=floats)
    if attribute.name not in ("value", "sparse_value"):
        return None
    tensor = attribute.t if attribute.name == "value" else attribute.sparse_tensor
    values = tensor.values if _is_sparse(tensor) else tensor
    return tensor if values.data_type not in (dtypes.STRING, _INT64, _BOOL) else None


def _is_sparse(tensor: Any) -> bool:
    return bool(tensor.DESCRIPTOR.name == "SparseTensorProto")


def subgraph_tensors(path: str, graph: Any) -> dict[str, Any]:
    """Return the tensors of a subgraph by name, as ``move_constants`` and ``move_sparse`` do.

    The graph stays as it is: what a subgraph computes is left to onnxruntime.
    """
    found = [(sparse.values.name, sparse) for sparse in graph.sparse_initializer]
    found += [(node.output[0], _constant(node)) for node in graph.node if _constant(node)]
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for name, tensor in found:
        if not _is_sparse(tensor):
            tensors[name] = tensor
        elif dtypes.is_numpy_dtype(kind := tensor.values.data_type):
            data = _dense_bytes(path, tensor).tobytes()
            tensors[name] = type(tensor.values)(data_type=kind, dims=tensor.dims, raw_data=data)
    for tensor in tensors.values():
        check_tensor(path, tensor)
    return tensors


def move_sparse(path: str, proto: Any) -> dict[str, Array]:
    """Replace the sparse initializers of the graph by dense ones, whose flat bytes are returned."""
    graph = proto.graph
    taken = {tensor.name for tensor in graph.initializer}
    arrays: dict[str, Array] = {}
    kept = []
    for sparse in graph.sparse_initializer:
        name, dtype = sparse.values.name, sparse.values.data_type
        if not dtypes.is_numpy_dtype(dtype) or name in taken:
            kept.append(sparse)  # onnxruntime refuses it
            continue
        taken.add(name)
        arrays[name] = _dense_bytes(path, sparse)
        tensor = graph.initializer.add(name=name, data_type=dtype, dims=sparse.dims)
        _place_in_memory(tensor, arrays[name].size)
    if arrays:
        del graph.sparse_initializer[:]
        graph.sparse_initializer.extend(kept)
    return arrays


def _dense_bytes(path: str, sparse: Any) -> Array:
    """The entries of a ``SparseTensorProto``, with the zeros between them, as flat bytes."""
    name, shape = sparse.values.name, tuple(sparse.dims)
    for part in (sparse.values, sparse.indices):
        check_tensor(path, part)
        if part.data_location == EXTERNAL:
            raise ModelError(f"The sparse tensor {name!r} of {path!r} is in another file.", _AGAIN)
    count, width = math.prod(shape), (dtypes.dtype_bits(sparse.values.data_type) or 0) // 8
    if not is_shape(shape) or count * width > _LARGEST:
        raise ModelError(
            f"The sparse tensor {name!r} of {path!r} has more than {_LARGEST:,} bytes with its"
            " zeros.",
            _AGAIN,
        )
    values = bytes_of(sparse.values).reshape(-1, width)
    places = _places(sparse, shape)
    if places is None or len(places) != len(values) or not _within(places, count):
        raise ModelError(
            f"The indices of the sparse tensor {name!r} of {path!r} do not fit its shape.", _AGAIN
        )
    dense = np.zeros((count, width), np.uint8)
    dense[places] = values
    return dense.reshape(-1)


def _places(sparse: Any, shape: tuple[int, ...]) -> Array | None:
    """The positions of the entries in row-major order; None if they are something else."""
    indices = sparse.indices
    if indices.data_type not in _SIGNED:
        return None
    flat = bytes_of(indices).view(dtypes.numpy_dtype(indices.data_type)).astype(np.int64)
    if len(indices.dims) == 1:
        return flat
    if tuple(indices.dims) != (len(flat) // max(len(shape), 1), len(shape)):
        return None
    columns = flat.reshape(-1, len(shape)).T
    if not all(_within(column, length) for column, length in zip(columns, shape, strict=True)):
        return None
    return np.asarray(np.ravel_multi_index(tuple(columns), shape))


def _within(places: Array, count: int) -> bool:
    return not places.size or bool(places.min() >= 0 and places.max() < count)


def check_tensor(path: str, tensor: Any) -> None:
    """Raise ModelError if the data of a tensor does not have the size of its shape."""
    bits = dtypes.dtype_bits(tensor.data_type)
    if any(length < 0 for length in tensor.dims):
        raise ModelError(f"The tensor {tensor.name!r} of {path!r} has a negative length.", _AGAIN)
    if not is_shape(tensor.dims):
        raise ModelError(
            f"The tensor {tensor.name!r} of {path!r} has more elements than any file.", _AGAIN
        )
    if tensor.data_type != dtypes.STRING and bits is None:
        raise ModelError(
            f"The tensor {tensor.name!r} of {path!r} has the unknown type {tensor.data_type}.",
            "It was made for a later release of onnx: python -m pip install --upgrade onnx"
            " onnxruntime",
        )
    if tensor.data_location == EXTERNAL or bits is None:
        return
    size = byte_count(tensor.dims, bits)
    stored = len(tensor.raw_data) if tensor.HasField(_RAW) else None
    if stored is None:
        stored = size if _typed_length(tensor) or not size else 0
    if stored != size:
        raise ModelError(
            f"The tensor {tensor.name!r} of {path!r} has"
            f" {shape_text(tensor.dims, 'one')} entries of"
            f" {dtypes.dtype_name(tensor.data_type)} but {stored:,} bytes.",
            _AGAIN,
        )


def _typed_length(tensor: Any) -> bool:
    """Whether a tensor has as many entries in the field of its type as its shape has."""
    from onnx import TensorProto, helper

    count, kind = math.prod(tensor.dims), tensor.data_type
    bits = dtypes.dtype_bits(kind) or 0
    if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        count *= 2
    elif bits < 8:  # several in an entry
        count = byte_count(tensor.dims, bits)
    return bool(len(getattr(tensor, helper.tensor_dtype_to_field(kind))) == count)


def bytes_of(tensor: Any) -> Array:
    """Return the values of a tensor that is in the file itself, as flat bytes."""
    if tensor.HasField(_RAW):
        return np.frombuffer(bytearray(tensor.raw_data), np.uint8)
    from onnx import numpy_helper

    array = np.ascontiguousarray(numpy_helper.to_array(tensor))
    return array.reshape(-1).view(np.uint8)


def move_out(tensor: Any) -> Array:
    """Return the values of a tensor, and leave a place in memory instead."""
    data = bytes_of(tensor)
    tensor.ClearField(_RAW)
    _place_in_memory(tensor, data.size)
    return data


def is_in_memory(tensor: Any) -> bool:
    """Whether the values of a tensor were moved out of the graph."""
    return any(e.key == "location" and e.value == _IN_MEMORY for e in tensor.external_data)


def _place_in_memory(tensor: Any, size: int) -> None:
    tensor.data_location = EXTERNAL
    for key, value in (("location", _IN_MEMORY), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
