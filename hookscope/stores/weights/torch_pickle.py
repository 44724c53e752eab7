"""What the pickle of ``torch.save`` says of its tensors, without torch and without running code.

A tensor is pickled as a call of a function such as ``torch._utils._rebuild_tensor_v2`` with a
storage, an offset, a shape and strides. The storage is a persistent id with a key; its bytes are
in another part of the file. numpy pickles an array as a call of ``_reconstruct``, which makes an
empty one, and its state: the shape, the dtype, the order of its values and their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import IO, Any

from hookscope.files.pickle_scan import MOST_INSTRUCTIONS, DamagedPickle, LongPickle
from hookscope.files.plain_pickle import GlobalName, OpaqueObject, PlainUnpickler, key_text
from hookscope.stores.weights.tensor_location import is_shape, span_of
from hookscope.stores.weights.weight_dtypes import bits_of, is_known, read_numpy_dtype

_RECONSTRUCT = re.compile(r"numpy\._?core\.multiarray\._reconstruct")
_FROM_BUFFER = re.compile(r"numpy\._?core\.numeric\._frombuffer")
_ARRAY, _DTYPE = "numpy.ndarray", "numpy.dtype"
_ENCODE = "_codecs.encode"
_EMPTY_BYTES = ("builtins.bytes", "__builtin__.bytes")
_LATIN = ("latin1", "latin-1")
_VERSION = 1  # of the state of an array
_LONGEST_CODE = 8  # characters of a dtype
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
_FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
# Bytes of an element of the storages whose values are not read: of quantized tensors, and of dtypes
# that TorchScript names by themselves.
_UNREAD_STORAGES = {
    **dict.fromkeys(("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4", "Bits8", "Bits4x2"), 1),
    **dict.fromkeys(("Bits1x8", "Bits2x4", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys((f"Float8_{kind}" for kind in _FLOAT8), 1),
    **{"UInt16": 2, "Bits16": 2, "UInt32": 4, "QInt32": 4, "ComplexHalf": 4, "UInt64": 8},
}
_MOST_ELEMENTS = 1 << 62
_MOST_ARGUMENTS = 16  # of a function that builds a tensor, or of a persistent id
_MOST_COPIED = MOST_INSTRUCTIONS  # entries of containers that are made from others
_LONGEST_DEVICE = 32  # characters
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


@dataclass(frozen=True, eq=False)
class PlainArray:
    """An array of numbers."""

    dtype: str
    big_endian: bool
    shape: tuple[int, ...]
    column_major: bool
    data: bytes | bytearray


class PickledArray(OpaqueObject):
    """An array of numpy, whose state the pickle sets after it.

    Its bytes are not copied: any number of arrays of a pickle may have the same ones.
    """

    # Without slots, since the content is kept: a checkpoint is searched for it several times.

    @cached_property
    def content(self) -> PlainArray | None:
        """The array; None if its values are not numbers, but objects, texts or records."""
        state = self.state
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != _VERSION:
            return None
        _, shape, description, column_major, data = state
        dtype = _read_dtype(description)
        if dtype is None or not isinstance(data, bytes | bytearray):
            return None
        name, big_endian = dtype
        if not isinstance(shape, tuple) or not is_shape(shape):
            raise DamagedPickle("an array has sizes that are negative or not numbers")
        if len(data) != prod(shape) * bits_of(name) // 8:
            raise DamagedPickle("an array has more or fewer values than its shape")
        return PlainArray(name, big_endian, shape, column_major is True, data)


class ArrayBuilder:
    """What calls that numpy pickles stand for.

    Bytes in a pickle of protocol 2 are a call that encodes a text. Each text is encoded once,
    however often a pickle names it.
    """

    def __init__(self) -> None:
        self._encoded: dict[int, tuple[str, bytes | None]] = {}

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return what a call stands for; None for any other call."""
        if _RECONSTRUCT.fullmatch(name) and arguments and arguments[0] == GlobalName(_ARRAY):
            return PickledArray(_ARRAY, arguments)
        if _FROM_BUFFER.fullmatch(name) and len(arguments) == 4:
            array = PickledArray(_ARRAY, arguments)
            data, dtype, shape, order = arguments
            array.state = (_VERSION, shape, dtype, order == "F", data)
            return array
        if name == _ENCODE and len(arguments) == 2 and arguments[1] in _LATIN:
            return self._encode(arguments[0])
        if name in _EMPTY_BYTES and not arguments:
            return b""
        return None

    def _encode(self, text: Any) -> bytes | None:
        if not isinstance(text, str):
            return None
        if id(text) not in self._encoded:
            # The text is stored too: its id may not pass to another one.
            self._encoded[id(text)] = text, _encoded(text)
        return self._encoded[id(text)][1]


def _encoded(text: str) -> bytes | None:
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        return None


def _read_dtype(description: Any) -> tuple[str, bool] | None:
    """The name of a pickled dtype and whether it is big-endian; None if it has no plain numbers."""
    if not isinstance(description, OpaqueObject) or description.name != _DTYPE:
        return None
    state, arguments = description.state, description.arguments
    if not isinstance(state, tuple) or len(state) < 5 or not arguments:
        return None
    _, order, *parts = state[:5]  # parts: of an array of arrays, and the names of records
    if any(part is not None for part in parts):
        return None
    texts = (order, arguments[0])
    # Nothing else becomes a text: that of nested values may be much longer than the file.
    if not all(isinstance(text, str) and len(text) <= _LONGEST_CODE for text in texts):
        return None
    return read_numpy_dtype("".join(texts))


@dataclass(frozen=True)
class StorageRecord:
    """A storage of a file."""

    key: str
    dtype: str
    offset: int
    numel: int
    itemsize: int


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as a view of a storage; offset and strides are in elements."""

    storage: StorageRecord
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchUnpickler(PlainUnpickler):
    """Reads ``torch.save``: tensors are ``TensorRecord``s, arrays of numpy ``PickledArray``s."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, int] = {}
        self.needed: dict[str, int] = {}
        self._build_array = ArrayBuilder()
        self._copied = 0

    def build(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return a tensor, a container, or an opaque object."""
        if (array := self._build_array(name, arguments)) is not None:
            return array
        if name in _CONTAINERS:
            return self._container(_CONTAINERS[name], arguments)
        if name == "collections.defaultdict":
            return self._container(dict, arguments[1:2])
        home, _, function = name.rpartition(".")
        if home in _REBUILD_HOMES and function in _REBUILD_TYPED and len(arguments) > 2:
            inner, _, arguments, *_ = arguments[:_MOST_ARGUMENTS]
            if not isinstance(inner, GlobalName) or not isinstance(arguments, tuple):
                raise DamagedPickle(f"{name} does not fit its arguments")
            self.called[inner.name] = None
            name = inner.name
        return _build(name, arguments)

    def _container(self, kind: type, arguments: tuple[Any, ...]) -> Any:
        """A new container with the entries of another one, which a pickle may copy many times."""
        content = arguments[0] if arguments else ()
        if not isinstance(content, dict | tuple | list):
            raise DamagedPickle("a container is filled with something else")
        self._copied += len(content)
        if self._copied > _MOST_COPIED:
            raise LongPickle(f"its containers have more than {_MOST_COPIED:,} entries")
        if kind is dict and isinstance(content, dict):
            return dict(content)
        if kind is dict:
            pairs = [pair for pair in content if isinstance(pair, tuple | list) and len(pair) == 2]
            return {key_text(key): value for key, value in pairs if isinstance(key, str | int)}
        if isinstance(content, dict):
            raise DamagedPickle("a container is filled with something else")
        return kind(content)

    def resolve(self, pid: Any) -> Any:
        """Return the storage of a persistent id; of an old file also a module with its source."""
        if not isinstance(pid, tuple) or not 0 < len(pid) <= _MOST_ARGUMENTS:
            raise DamagedPickle("a persistent id is not valid")
        kind, *data = pid
        if kind == "module" and data:
            return data[0]
        try:
            storage_type, key, _, numel, *views = data
            kind = storage_type.name.rpartition(".")[2]
        except _UNFIT as error:
            raise DamagedPickle("a persistent id is not valid") from error
        dtype = _STORAGE_DTYPES.get(kind, storage_type.name)
        if kind in _STORAGE_DTYPES:
            itemsize = bits_of(dtype) // 8
        elif (unread := kind.removesuffix("Storage")) in _UNREAD_STORAGES:
            itemsize = _UNREAD_STORAGES[unread]
        else:
            return OpaqueObject(dtype)
        view = views[0] if views and isinstance(views[0], tuple) else ("", 0, numel)
        is_key = isinstance(key, str) or _are_sizes((key,))
        if len(view) != 3 or not _are_sizes((numel, *view[1:])) or not is_key:
            raise DamagedPickle("a persistent id is not valid")
        key = str(key)
        self.storages[key] = itemsize
        self.needed[key] = max(self.needed.get(key, 0), numel * itemsize)
        return StorageRecord(key, dtype, view[1], view[2], itemsize)


def _build(name: str, arguments: tuple[Any, ...]) -> Any:
    """What a global with these arguments stands for."""
    home, _, function = name.rpartition(".")
    if home in _REBUILD_HOMES and function in _REBUILD:
        try:
            if len(arguments) > _MOST_ARGUMENTS:
                raise TypeError
            return _REBUILD[function](*arguments)
        except DamagedPickle:
            raise
        except _UNFIT as error:
            raise DamagedPickle(f"{name} does not fit its arguments") from error
    if name in ("copyreg._reconstructor", "copy_reg._reconstructor") and arguments:
        return OpaqueObject(getattr(arguments[0], "name", "?"), arguments[1:3])
    if name == "torch.device" and 0 < len(arguments) <= 2 and all(map(_is_of_device, arguments)):
        return ":".join(map(str, arguments))
    return OpaqueObject(name, arguments)


def _is_of_device(argument: Any) -> bool:
    """Whether this is a type of device, or its number. Nothing else is written as a text: that of
    nested tuples doubles with each level.
    """
    if isinstance(argument, str):
        return len(argument) <= _LONGEST_DEVICE
    return type(argument) is int and 0 <= argument < 1 << 16


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, dtype: str = "") -> Any:
    # Before they are copied: a pickle may name a list of millions of entries many times.
    if not all(isinstance(part, tuple | list) for part in (size, stride)) or len(size) > 64:
        raise DamagedPickle("a tensor has no valid shape and strides")
    if len(stride) != len(size):
        raise DamagedPickle("a tensor has more strides than lengths, or fewer")
    shape, strides = tuple(size), tuple(stride)
    if isinstance(storage, OpaqueObject):
        return OpaqueObject(storage.name)
    if not isinstance(storage, StorageRecord):
        raise DamagedPickle("a tensor has no storage")
    if not (_are_sizes((offset, *strides)) and is_shape(shape)):
        raise DamagedPickle("a tensor has sizes that are negative or not numbers")
    # The stride of a single entry is not used, and may be any number.
    strides = tuple(step if length > 1 else 0 for length, step in zip(shape, strides, strict=True))
    span = span_of(shape, strides)
    itemsize = bits_of(dtype) // 8 if dtype else storage.itemsize
    if span and (offset + span) * itemsize > storage.numel * storage.itemsize:
        raise DamagedPickle("a tensor extends beyond its storage")
    if not is_known(storage.dtype):
        return OpaqueObject(storage.dtype)
    return TensorRecord(storage, dtype or storage.dtype, offset, shape, strides)


def _rebuild_quantized(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> Any:
    _rebuild_tensor(storage, offset, size, stride)
    return OpaqueObject("torch._utils._rebuild_qtensor")


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


_REBUILD: dict[str, Callable[..., Any]] = {
    "_rebuild_tensor": _rebuild_tensor,
    "_rebuild_tensor_v2": _rebuild_tensor_v2,
    "_rebuild_tensor_v3": _rebuild_tensor_v3,
    "_rebuild_qtensor": _rebuild_quantized,
    "_rebuild_parameter": _rebuild_parameter,
    "_rebuild_parameter_with_state": _rebuild_parameter,
}
_REBUILD_HOMES = ("torch._utils", "torch._tensor")
# Called with a function and its arguments.
_REBUILD_TYPED = ("_rebuild_from_type", "_rebuild_from_type_v2")


def _are_sizes(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in numbers)
