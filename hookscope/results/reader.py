"""A file of results opened without torch: what its header tells at once, values as they are asked.

Opening reads the header alone, so a file of many gigabytes opens like a small one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, ResultsFileError
from hookscope.results.dtypes import RAW, widen
from hookscope.results.header import cannot_read, read_header
from hookscope.results.numpy_stats import blocks
from hookscope.results.records import Record, Recording
from hookscope.specs.suggest import did_you_mean
from hookscope.specs.tensor_key import WHOLE, Index


class OpenCapture(Recording):
    """A capture whose tensors stay in the file until they are asked for.

    Attributes:
        records, absent, coverage, metadata: as those of ``hookscope.load(path)``.
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = path
        header = read_header(path)
        self._places = header.places
        self._pairs = header.pairs
        self.take_info(header.info, {key: self._shape_of(key) for key in header.places}, path)

    def record(self, key: str) -> Record:
        """Return the record of a tensor.

        Raises:
            RequestError: the file holds nothing of that name.
        """
        if key not in self._records:
            near = did_you_mean(key, self._records)
            raise RequestError(
                f"There is no {key!r} in {self.path}.", near or f"'hookscope show {self.path}'."
            )
        return self._records[key]

    def tensor(self, key: str, index: Index = WHOLE) -> NDArray[Any]:
        """Return the values of a tensor, or of a part of it; no other part is read.

        Args:
            key: its name in the file.
            index: integers, slices and at most one ``...``, as numpy takes them.

        Returns:
            An array of the stored dtype. bfloat16 and the float8s, which numpy has not, become
            float32, and complex32 becomes complex64, each without a change of value.

        Raises:
            RequestError: there is no such key, or the index lies outside.
            ResultsFileError: the file is gone, or the dtype is one that cannot be shown.

        Example:
            >>> import hookscope, torch
            >>> model = torch.nn.Linear(2, 2).bfloat16()
            >>> with hookscope.record(model) as capture:
            ...     _ = model(torch.ones(3, 2).bfloat16())
            >>> _ = capture.save("linear.safetensors")
            >>> open_capture("linear.safetensors").tensor("./output", (0,)).dtype
            dtype('float32')
        """
        view, dtype = self._view(key, index)
        return np.array(widen(view, dtype))

    def blocks(self, key: str, index: Index = WHOLE) -> Iterator[NDArray[Any]]:
        """Yield the same values in row-major order, in blocks of one dimension.

        A block is only good until the next one: what is held at a time is one block.
        """
        view, dtype = self._view(key, index)
        return (widen(block, dtype) for block in blocks(view))

    def dtype(self, key: str) -> np.dtype[Any]:
        """Return the dtype of what ``tensor`` would return."""
        view, dtype = self._view(key, WHOLE)
        return np.asarray(widen(view.reshape(-1)[:0], dtype)).dtype

    def shape(self, key: str, index: Index = WHOLE) -> tuple[int, ...]:
        """Return the shape of what ``tensor`` would return."""
        return self._view(key, index)[0].shape

    def _shape_of(self, key: str) -> tuple[int, ...]:
        """The shape as torch has it."""
        place = self._places[key]
        if key in self._pairs:
            return place.shape[:-1]
        # of values of four bits torch counts two as one
        return (*place.shape[:-1], place.shape[-1] // 2) if place.dtype == "F4" else place.shape

    def _view(self, key: str, index: Index) -> tuple[NDArray[Any], str]:
        """The values as they lie in the file, and what the format calls their dtype."""
        record, place = self.record(key), self._places[key]
        if place.dtype not in RAW:
            raise ResultsFileError(
                f"{key} is of dtype {record.dtype}, which cannot be shown.",
                "Open the file with hookscope.load, and convert the tensor.",
            )
        raw, shape = np.dtype(RAW[place.dtype]), self._shape_of(key)
        if key in self._pairs:  # real and imaginary part lie side by side, as numpy has them
            raw = np.dtype([("re", raw), ("im", raw)])
        try:
            whole = (
                np.memmap(self.path, raw, "r", place.start, shape)
                if np.prod(shape, dtype=object)
                else np.empty(shape, raw)
            )
        except (OSError, ValueError) as error:
            raise cannot_read(self.path, error) from error
        try:
            return np.asarray(whole[index]), place.dtype
        except IndexError as error:
            looks = "x".join(map(str, shape)) or "a single number"
            raise RequestError(
                f"{key} is {looks}, and the slice does not fit: {error}.",
                "Count from 0, and give at most one entry for each dimension.",
            ) from error


def open_capture(path: str | os.PathLike[str]) -> OpenCapture:
    """Open a file that a recording was saved to, by its header alone.

    Raises:
        ResultsFileError: the file is missing, damaged, or not hookscope's.
    """
    return OpenCapture(path)
