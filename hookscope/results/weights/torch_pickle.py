"""What the pickle of ``torch.save`` says of its tensors, without torch and without running code.

A tensor is pickled as a call of a function such as ``torch._utils._rebuild_tensor_v2`` with a
storage, an offset, a shape and strides. The storage is a persistent id with a key; its bytes are
in another part of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from hookscope.files.pickle_scan import DamagedPickle
from hookscope.files.plain_pickle import GlobalName, OpaqueObject, PlainUnpickler
from hookscope.results.weights.pickled_arrays import ArrayBuilder
from hookscope.results.weights.strided_location import is_shape
from hookscope.results.weights.weight_dtypes import bits_of, is_known

_STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "BFloat16Storage": "bfloat16",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
}
_MOST_ELEMENTS = 1 << 62
_CONTAINERS = {
    **dict.fromkeys(("collections.OrderedDict", "collections.Counter"), dict),
    **dict.fromkeys(("builtins.dict", "__builtin__.dict"), dict),
    **dict.fromkeys(
        (f"{home}.{name}" for home in ("builtins", "__builtin__") for name in ("set", "frozenset")),
        list,
    ),
    **dict.fromkeys(("builtins.list", "__builtin__.list", "collections.deque"), list),
    **dict.fromkeys(("builtins.tuple", "__builtin__.tuple", "torch.Size"), tuple),
}
# What a damaged or crafted pickle gives these functions raises one of these.
_UNFIT = (TypeError, ValueError, LookupError, AttributeError)


@dataclass(frozen=True)
class StorageRecord:
    """A storage of a file.

    Attributes:
        key: the name of its bytes in the file.
        dtype: torch's name of the dtype of its elements.
        offset: of its first element in the bytes, in elements.
        numel: the number of its elements, as the pickle says.
    """

    key: str
    dtype: str
    offset: int
    numel: int


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as a view of a storage; offset and strides are in elements."""

    storage: StorageRecord
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchUnpickler(PlainUnpickler):
    """Reads pickles of ``torch.save``: tensors are ``TensorRecord``s, and mappings are dicts.

    Arrays of numpy are ``PickledArray``s.

    Attributes:
        storages: the size of an element in bytes of each storage by key.

    Example:
        >>> import collections, io, pickle
        >>> data = pickle.dumps(collections.OrderedDict(a=1))
        >>> TorchUnpickler(io.BytesIO(data)).load()
        {'a': 1}
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, int] = {}
        self._build_array = ArrayBuilder()

    def build(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return a tensor, a container, or an opaque object."""
        if (array := self._build_array(name, arguments)) is not None:
            return array
        return _build(name, arguments)

    def resolve(self, pid: Any) -> Any:
        """Return the storage of a persistent id; of an old file also a module with its source."""
        if not isinstance(pid, tuple) or not pid:
            raise DamagedPickle("a persistent id is not valid")
        kind, *data = pid
        if kind == "module" and data:
            return data[0]
        try:
            storage_type, key, _, numel, *views = data
            dtype = _STORAGE_DTYPES.get(storage_type.name.rpartition(".")[2])
        except _UNFIT as error:
            raise DamagedPickle("a persistent id is not valid") from error
        if dtype is None:  # quantised or not strided
            return OpaqueObject(storage_type.name)
        view = views[0] if views and isinstance(views[0], tuple) else ("", 0, numel)
        if len(view) != 3 or not _are_sizes((numel, *view[1:])) or type(key) not in (str, int):
            raise DamagedPickle("a persistent id is not valid")
        self.storages[str(key)] = bits_of(dtype) // 8
        return StorageRecord(str(key), dtype, view[1], view[2])


def _build(name: str, arguments: tuple[Any, ...]) -> Any:
    """What a global with these arguments stands for."""
    home, _, function = name.rpartition(".")
    if home in ("torch._utils", "torch._tensor") and function in _REBUILD:
        try:
            return _REBUILD[function](*arguments)
        except DamagedPickle:
            raise
        except _UNFIT as error:
            raise DamagedPickle(f"{name} does not fit its arguments") from error
    if name in _CONTAINERS:
        return _container(_CONTAINERS[name], arguments)
    if name == "collections.defaultdict":
        return _container(dict, arguments[1:])
    if name in ("copyreg._reconstructor", "copy_reg._reconstructor") and arguments:
        return OpaqueObject(getattr(arguments[0], "name", "?"), arguments[1:])
    if name == "torch.device" and arguments:
        return ":".join(map(str, arguments))
    return OpaqueObject(name, arguments)


def _container(kind: type, arguments: tuple[Any, ...]) -> Any:
    content = arguments[0] if arguments else ()
    if kind is dict:
        if isinstance(content, dict):
            return dict(content)
        pairs = [pair for pair in content if isinstance(pair, tuple | list) and len(pair) == 2]
        return {str(key): value for key, value in pairs if isinstance(key, str | int)}
    if not isinstance(content, tuple | list):
        raise DamagedPickle("a container is filled with something else")
    return kind(content)


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, dtype: str = "") -> Any:
    shape, strides = tuple(size), tuple(stride)
    if isinstance(storage, OpaqueObject):
        return OpaqueObject(storage.name)
    if not isinstance(storage, StorageRecord) or len(shape) != len(strides):
        raise DamagedPickle("a tensor has no storage")
    if not (_are_sizes((offset, *strides)) and is_shape(shape)):
        raise DamagedPickle("a tensor has sizes that are no numbers, or negative")
    return TensorRecord(storage, dtype or storage.dtype, offset, shape, strides)


def _rebuild_tensor_v2(
    storage: Any,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    flags: Any = None,
) -> Any:
    if flags:  # the values are conjugated or negated when they are read
        return OpaqueObject("torch.Tensor (conjugated or negated)")
    return _rebuild_tensor(storage, offset, size, stride)


def _rebuild_tensor_v3(
    storage: Any,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: GlobalName,
    flags: Any = None,
) -> Any:
    name = dtype.name.removeprefix("torch.")
    if flags or not is_known(name) or bits_of(name) % 8:
        return OpaqueObject(f"torch.Tensor ({name})")
    return _rebuild_tensor(storage, offset, size, stride, name)


def _rebuild_parameter(data: Any, *rest: Any) -> Any:
    return data


def _rebuild_from_type(function: GlobalName, kind: Any, arguments: tuple[Any, ...], *_: Any) -> Any:
    return _build(function.name, arguments)


_REBUILD: dict[str, Callable[..., Any]] = {
    "_rebuild_tensor": _rebuild_tensor,
    "_rebuild_tensor_v2": _rebuild_tensor_v2,
    "_rebuild_tensor_v3": _rebuild_tensor_v3,
    "_rebuild_parameter": _rebuild_parameter,
    "_rebuild_parameter_with_state": _rebuild_parameter,
    "_rebuild_from_type": _rebuild_from_type,
    "_rebuild_from_type_v2": _rebuild_from_type,
}


def _are_sizes(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in numbers)
