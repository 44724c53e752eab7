"""Arrays of numpy in a pickle, read without numpy and without calling what the pickle names.

numpy pickles an array as a call of ``_reconstruct``, which makes an empty one, and its state: the
shape, the dtype, the order of its values and their bytes. The bytes are in the pickle itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from hookscope.files.pickle_scan import DamagedPickle
from hookscope.files.plain_pickle import GlobalName, OpaqueObject
from hookscope.stores.weights.tensor_location import is_shape
from hookscope.stores.weights.weight_dtypes import bits_of, read_numpy_dtype

_RECONSTRUCT = re.compile(r"numpy\._?core\.multiarray\._reconstruct")
_FROM_BUFFER = re.compile(r"numpy\._?core\.numeric\._frombuffer")
_ARRAY, _DTYPE = "numpy.ndarray", "numpy.dtype"
_ENCODE = "_codecs.encode"
_EMPTY_BYTES = ("builtins.bytes", "__builtin__.bytes")
_LATIN = ("latin1", "latin-1")
_VERSION = 1  # of the state of an array
_LONGEST_CODE = 8  # characters of a dtype


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
        """The array; None if its values are no plain numbers, such as objects, texts or records."""
        state = self.state
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != _VERSION:
            return None
        _, shape, description, column_major, data = state
        dtype = _read_dtype(description)
        if dtype is None or not isinstance(data, bytes | bytearray):
            return None
        name, big_endian = dtype
        if not isinstance(shape, tuple) or not is_shape(shape):
            raise DamagedPickle("an array has sizes that are no numbers, or negative")
        if len(data) != prod(shape) * bits_of(name) // 8:
            raise DamagedPickle("an array has more or fewer values than its shape")
        return PlainArray(name, big_endian, shape, column_major is True, data)


class ArrayBuilder:
    """What calls that numpy pickles stand for.

    Bytes in a pickle of protocol 2 are a call that encodes a text. Each text is encoded once,
    however often a pickle names it.

    Example:
        >>> build = ArrayBuilder()
        >>> array = build("numpy._core.multiarray._reconstruct", (GlobalName(_ARRAY), (0,)))
        >>> array.state = (1, (2,), OpaqueObject(_DTYPE, ("u1",)), False, b"ab")
        >>> array.state[2].state = (3, "|", None, None, None, -1, -1, 0)
        >>> array.content.dtype, array.content.shape
        ('uint8', (2,))
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
