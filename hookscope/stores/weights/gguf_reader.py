"""The header of a GGUF file as a list of tensors and metadata.

The header is read here and not by the package ``gguf``, whose reader takes counts and lengths from
the file as they are. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import IO, Any

from hookscope.files.file_types import GGUF_MAGIC
from hookscope.files.words import join_first
from hookscope.stores.weights.tensor_location import (
    QuantisedLocation,
    StridedLocation,
    TensorLocation,
    is_shape,
)
from hookscope.stores.weights.weight_dtypes import bits_of
from hookscope.stores.weights.weight_set import (
    LONGEST_NAME,
    StoredWeights,
    WeightTensor,
    check_count,
)

# Types of tensors: the number, torch's name or that of GGUF, elements and bytes of a block.
_PLAIN_TYPES = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
_BLOCK_TYPES = {
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    29: ("iq1_m", 256, 56),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
}
# Types of metadata: how struct reads them; a text and a list are apart.
_NUMBERS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"},
    **{10: "Q", 11: "q", 12: "d"},
}
_TEXT, _LIST = 8, 9
_VERSIONS = (2, 3)
_MOST_TYPES = 256  # of tensors; a number beyond it is damage, and one below may be a new type
_MOST_DIMENSIONS = 8
# Keys are read one by one, and texts in lists faster: each number takes about a second. A large
# vocabulary with its merges has 800,000 texts.
_MOST_KEYS = 100_000
_MOST_VALUES = 2_000_000
_LONGEST_TEXT = 1 << 24
_MOST_TEXT = 1 << 26  # bytes of all texts outside lists
_LARGEST_ALIGNMENT = 1 << 20
_CHUNK = 1 << 20
_SHOWN = 4  # values of a list


def read_gguf(path: str) -> StoredWeights:
    """Return the tensors and metadata of a GGUF file; no values are read."""
    with open(path, "rb") as file:
        return _read(path, _Header(file))


class _Header:
    """Reads values of a header, no further than the file reaches."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._buffer = b""
        self._at = 0
        self._values_left = _MOST_VALUES
        self._text_left = _MOST_TEXT
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise ValueError("its header is cut off")
        if self._at + count > len(self._buffer):
            rest = self._buffer[self._at :]
            self._buffer = rest + self._file.read(max(_CHUNK, count - len(rest)))
            self._at = 0
        data = self._buffer[self._at : self._at + count]
        self._at += count
        self.position += count
        return data

    def number(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return value

    def text(self, longest: int = _LONGEST_TEXT) -> str:
        data = self._text_bytes(longest)
        self._text_left -= len(data)
        if self._text_left < 0:
            raise ValueError(f"its texts have more than {_MOST_TEXT:,} bytes")
        return data.decode("utf-8", "replace")

    def _text_bytes(self, longest: int) -> bytes:
        length = self.number("Q")
        if length > longest:
            raise ValueError(f"it has a text of {length:,} bytes")
        return self.take(length)

    def name(self) -> str:
        """The name of a tensor or the key of a value of the metadata."""
        return self.text(LONGEST_NAME)

    def value(self) -> tuple[Any, str]:
        """A value of the metadata, and its text; of a list its first entries and its length."""
        kind = self.number("I")
        if kind in _NUMBERS:
            value = self.number(_NUMBERS[kind])
            return value, str(value)
        if kind == _TEXT:
            text = self.text()
            return text, text
        if kind == _LIST:
            return None, self._list_text()
        raise ValueError(f"its metadata have the unknown type {kind}")

    def _list_text(self) -> str:
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            size = struct.calcsize(_NUMBERS[kind])
            if count > (self.size - self.position) // size:
                raise ValueError("its header is cut off")
            shown = min(count, _SHOWN)
            values = [str(self.number(_NUMBERS[kind])) for _ in range(shown)]
            for start in range(shown, count, _CHUNK):
                self.take(size * min(_CHUNK, count - start))
        elif kind == _TEXT:
            if count > min((self.size - self.position) // 8, self._values_left):
                raise ValueError(f"its metadata have {count:,} texts in a list")
            self._values_left -= count
            values = [self.text() for _ in range(min(count, _SHOWN))]
            for _ in range(len(values), count):
                self._text_bytes(_LONGEST_TEXT)
        else:
            raise ValueError("its metadata have a list of lists or of an unknown type")
        return f"[{', '.join(values)}{', ...' if count > _SHOWN else ''}] ({count:,} values)"


def _read(path: str, header: _Header) -> StoredWeights:
    if header.take(4) != GGUF_MAGIC:
        raise ValueError("it does not begin as one")
    version = header.number("I")
    if version not in _VERSIONS:
        swapped = version & 0xFFFF == 0
        raise ValueError("it is big-endian" if swapped else f"its version is {version}")
    tensor_count, value_count = header.number("Q"), header.number("Q")
    check_count(path, tensor_count)
    if value_count > _MOST_KEYS:
        raise ValueError(f"it has {value_count:,} metadata; at most {_MOST_KEYS:,} are read")
    # Each entry takes at least this many bytes, so that a count is limited by the file.
    if tensor_count > header.size // 24 or value_count > header.size // 13:
        raise ValueError("it has more entries than its size allows")
    alignment, metadata = 32, {}
    for _ in range(value_count):
        key = header.name()
        value, metadata[key] = header.value()
        if key == "general.alignment":
            alignment = value
    if type(alignment) is not int or not 0 < alignment <= _LARGEST_ALIGNMENT:
        raise ValueError("its alignment is not valid")
    entries = [_entry(header) for _ in range(tensor_count)]
    start = -(-header.position // alignment) * alignment
    tensors = _tensors(path, entries, start, header.size)
    return StoredWeights("GGUF", tensors, metadata, notes=tuple(_notes(entries)))


def _notes(entries: Sequence[_Entry]) -> Iterator[str]:
    for dtype in sorted({entry.dtype for entry in entries if not entry.block[1]}):
        names = [entry.name for entry in entries if entry.dtype == dtype]
        yield f"The values of {join_first(names)} cannot be read: {dtype} of GGUF is not known."


@dataclass(frozen=True)
class _Entry:
    """A tensor in the header; ``block`` is the number of elements and of bytes of a block.

    A tensor of a type that is not known is one block, whose size only the next offset tells.
    """

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int
    dtype: str
    block: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.block[0] * self.block[1]


def _entry(header: _Header) -> _Entry:
    name = header.name()
    dimensions = header.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"{name!r} has {dimensions:,} dimensions")
    shape = tuple(header.number("Q") for _ in range(dimensions))[::-1]  # the innermost comes first
    kind, offset = header.number("I"), header.number("Q")
    if not is_shape(shape):
        raise ValueError(f"{name!r} has more elements than any file")
    if kind in _PLAIN_TYPES:
        dtype = _PLAIN_TYPES[kind]
        return _Entry(name, shape, kind, offset, dtype, (1, bits_of(dtype) // 8))
    if kind not in _BLOCK_TYPES:
        if kind >= _MOST_TYPES:
            raise ValueError(f"{name!r} has the unknown type {kind}")
        return _Entry(name, shape, kind, offset, f"type {kind}", (max(prod(shape), 1), 0))
    dtype, elements, size = _BLOCK_TYPES[kind]
    if not shape or shape[-1] % elements:
        raise ValueError(f"the shape of {name!r} does not fit blocks of {elements}")
    return _Entry(name, shape, kind, offset, dtype, (elements, size))


def _tensors(
    path: str, entries: Sequence[_Entry], start: int, size: int
) -> list[tuple[WeightTensor, TensorLocation]]:
    """The tensors in the order of their offsets; they neither overlap nor reach beyond the file."""
    tensors: list[tuple[WeightTensor, TensorLocation]] = []
    names: set[str] = set()
    end = 0
    in_order = sorted(entries, key=lambda entry: (entry.offset, entry.nbytes))
    following = [*(entry.offset for entry in in_order[1:]), max(size - start, 0)]
    for entry, limit in zip(in_order, following, strict=True):
        if not entry.block[1]:
            entry = replace(entry, block=(entry.block[0], max(limit - entry.offset, 0)))
        if entry.name in names:
            raise ValueError(f"the name {entry.name!r} is repeated")
        if entry.offset < end:
            raise ValueError(f"the values of {entry.name!r} overlap others")
        end = entry.offset + entry.nbytes
        if start + end > size:
            raise ValueError(f"the values of {entry.name!r} are cut off")
        names.add(entry.name)
        location: TensorLocation = (
            StridedLocation(path, start + entry.offset, entry.dtype, entry.shape)
            if entry.type_number in _PLAIN_TYPES
            else QuantisedLocation(
                path, start + entry.offset, entry.shape, entry.type_number, entry.block
            )
        )
        tensor = WeightTensor(entry.name, entry.dtype, entry.shape, entry.nbytes, path)
        tensors.append((tensor, location))
    return tensors
