"""The table of inputs: where each row came from. A line is read when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import ResultsFileError, cause
from hookscope.results.features.folder import INPUTS
from hookscope.results.features.location import Place

_BLOCK = 1 << 22  # bytes


class Inputs(Sequence[dict[str, Any]]):
    """One entry a row: ``row``, ``path``, ``bytes``, ``sha256``, and ``skipped`` if it was.

    Of an item of a Dataset ``row`` and ``item``, its number there.

    Args:
        place: the folder.
        rows: how many there are.
    """

    def __init__(self, place: Place, rows: int) -> None:
        self._place, self._rows = place, rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Inputs, (self._place, self._rows)

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(row, slice):
            return [self[i] for i in range(self._rows)[row]]
        start, end = self._lines[range(self._rows)[row]]
        try:
            with self._place.open(INPUTS) as file:
                file.seek(int(start))
                line = file.read(int(end - start))
        except OSError as error:
            raise self._damaged(cause(error)) from error
        return self._entry(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = 0
        try:
            with self._place.open(INPUTS) as file:
                for line in file:
                    yield self._entry(line)
                    rows += 1
        except OSError as error:
            raise self._damaged(cause(error)) from error
        if rows != self._rows:
            raise self._damaged(f"it has {rows} lines for {self._rows} rows")

    @property
    def paths(self) -> list[str | None]:
        """The path of each row's input; None of an item of a Dataset."""
        return [entry.get("path") for entry in self]

    @property
    def skipped(self) -> dict[int, str]:
        """The rows whose input could not be used, each with the reason."""
        return {entry["row"]: str(entry["skipped"]) for entry in self if "skipped" in entry}

    @cached_property
    def _lines(self) -> NDArray[np.int64]:
        """Where each line begins and ends."""
        found, at = [np.zeros(1, np.int64)], 0
        try:
            with self._place.open(INPUTS) as file:
                while block := file.read(_BLOCK):
                    found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + at + 1)
                    at += len(block)
        except OSError as error:
            raise self._damaged(cause(error)) from error
        ends = np.concatenate(found)
        if len(ends) != self._rows + 1:
            raise self._damaged(f"it has {len(ends) - 1} lines for {self._rows} rows")
        return np.stack([ends[:-1], ends[1:]], axis=1)

    def _entry(self, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged("a line is no JSON") from error
        if not isinstance(entry, dict) or "row" not in entry:
            raise self._damaged("a line is of no row")
        return entry

    def _damaged(self, found: str) -> ResultsFileError:
        return ResultsFileError(
            f"The table {INPUTS} in {self._place} cannot be read: {found}.",
            f"'hookscope verify {self._place}' tells what else is damaged.",
        )
