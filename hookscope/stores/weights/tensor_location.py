"""Where the values of a tensor are stored in a file, as plain data without numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

_MOST_DIMENSIONS = 64  # as in numpy and torch
_MOST_ELEMENTS = 1 << 58  # numpy and torch count the bytes in 63 bits; a number has up to 16


@dataclass(frozen=True)
class StridedLocation:
    """Where the values of a tensor are stored."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    record: str = ""
    big_endian: bool = False
    data: bytes | bytearray | None = None


def is_shape(shape: Iterable[object]) -> bool:
    """Whether a file gives a possible shape, or strides: some numbers that are not negative.

    Their product is below 2**58, and so is that of the others if some of them are 0.
    """
    lengths = list(islice(shape, _MOST_DIMENSIONS + 1))
    if len(lengths) > _MOST_DIMENSIONS:
        return False
    elements = 1
    for length in lengths:
        # Each by itself first: multiplying integers of megabytes takes minutes.
        if type(length) is not int or not 0 <= length < _MOST_ELEMENTS:
            return False
        elements *= max(length, 1)
    return elements < _MOST_ELEMENTS


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides in elements of a tensor without gaps: (12, 4, 1) for (2, 3, 4)."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def column_major_strides(shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a tensor whose first index changes fastest; None of a single row."""
    if len(shape) < 2:
        return None
    return tuple(prod(shape[:axis]) for axis in range(len(shape)))


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of its storage a tensor extends over."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether values are in row-major order without gaps, whatever the stride of a single entry."""
    expected = row_major_strides(shape)
    steps = zip(shape, strides, expected, strict=True)
    return all(length == 1 or step == wanted for length, step, wanted in steps)


@dataclass(frozen=True)
class QuantisedLocation:
    """Where the blocks of a quantised tensor are stored."""

    path: str
    offset: int
    shape: tuple[int, ...]
    type_number: int
    block: tuple[int, int]


TensorLocation = StridedLocation | QuantisedLocation
