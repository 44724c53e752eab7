"""Reading the values of a quantised tensor of GGUF, which the package ``gguf`` dequantises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import WeightsFileError
from hookscope.files.optional_packages import optional_package
from hookscope.specs.tensor_key import Index
from hookscope.stores.weights.tensor_location import QuantisedLocation, StridedLocation
from hookscope.stores.weights.tensor_values import StridedValues

_DEQUANTISED = 1 << 20  # elements of a window of a quantised tensor


class QuantisedValues:
    """The values of a quantised tensor as float32."""

    def __init__(self, location: QuantisedLocation) -> None:
        self._location = location

    @cached_property
    def _dequantise(self) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
        """What dequantises blocks; the bytes of a tensor are read without it."""
        location = self._location
        with optional_package("gguf", "gguf", "Reading quantised values of a GGUF file"):
            from gguf.constants import GGMLQuantizationType
            from gguf.quants import dequantize
        try:
            kind = GGMLQuantizationType(location.type_number)
        except ValueError as error:
            raise WeightsFileError(
                f"Values of type {location.type_number} in {location.path} cannot be read:"
                " the package gguf does not know this type.",
                "Convert the file to another type of GGUF.",
            ) from error

        def dequantised(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
            with np.errstate(all="ignore"):  # a scale may be infinite
                values = dequantize(stored.reshape(1, -1), kind)
            return np.asarray(values, np.float32).reshape(-1)

        try:
            dequantised(np.zeros(location.block[1], np.uint8))
        except NotImplementedError as error:
            raise WeightsFileError(
                f"Values of type {kind.name.lower()} in {location.path} cannot be read:"
                " the package gguf does not dequantise them.",
                "Convert the file to another type of GGUF.",
            ) from error
        return dequantised

    def read(self, index: Index) -> NDArray[Any]:
        """Return a new array of the values at ``index``; only those rows are read."""
        shape = self._location.shape
        first = index[0] if index else ...
        if len(shape) < 2 or not isinstance(first, int | slice):
            return np.array(self._rows(0, shape[0])[index])
        chosen = range(shape[0])[first]
        rows = range(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        low, high = (min(rows), max(rows) + 1) if rows else (0, 0)
        part = self._rows(low, high)[np.array([row - low for row in rows], np.intp)]
        return np.array(part[(0 if isinstance(first, int) else slice(None), *index[1:])])

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order."""
        return self._windows(0, prod(self._location.shape))

    def stored(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all blocks in their order."""
        location = self._location
        count = prod(location.shape) // location.block[0] * location.block[1]
        stored = StridedLocation(location.path, location.offset, "uint8", (count,))
        yield from StridedValues(stored).blocks()

    def _rows(self, low: int, high: int) -> NDArray[np.float32]:
        row = prod(self._location.shape[1:])
        out = np.empty((high - low) * row, np.float32)
        at = 0
        for block in self._windows(low * row, high * row):
            out[at : at + len(block)] = block
            at += len(block)
        return out.reshape(high - low, *self._location.shape[1:])

    def _windows(self, low: int, high: int) -> Iterator[NDArray[np.float32]]:
        """Values from element ``low`` to ``high``, both at the beginning of a block."""
        elements, size = self._location.block
        start = self._location.offset + low // elements * size
        count = (high - low) // elements * size
        stored = StridedLocation(self._location.path, start, "uint8", (count,))
        window = _DEQUANTISED // elements * size
        return map(self._dequantise, StridedValues(stored, window).blocks())
