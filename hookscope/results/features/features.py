"""A folder of features, opened: its keys as lazy arrays, the table of its inputs. Without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, ResultsFileError, StoreError, cause
from hookscope.results.features.folder import (
    INPUTS,
    MANIFEST,
    PARTS,
    PLAN,
    STATISTICS,
    STATISTICS_ONLY,
    damaged_file_error,
    read_json,
)
from hookscope.results.features.lazy_rows import SCALE, LazyRows
from hookscope.results.features.location import Location, parse_location
from hookscope.results.features.manifest import read_parts
from hookscope.results.features.manifest_schema import check_manifest, check_schema
from hookscope.results.features.shards import Shards
from hookscope.specs.output_path import ADDRESS, holds_features
from hookscope.specs.tensor_key import WHOLE, choose_keys

if TYPE_CHECKING:
    from hookscope.results.features.torch_dataset import RowsDataset


class Features:
    """What a run over a dataset wrote.

    ``features["layer4"]`` are the rows of a layer (or of a key, ``layer4/output``) as an array
    that lies on disk; ``len(features)`` is the number of rows.

    Attributes:
        folder: where it lies.
        manifest: what it is and how it came about, as ``manifest.json`` tells it.
        rows: how many inputs there are, one row each.
        keys: what is kept of each, in execution order.
        inputs: where each row came from.
    """

    def __init__(self, folder: str | os.PathLike[str], *, sums: bool = False) -> None:
        """Open the folder; with ``sums`` shards that are read are held against their CRC-32."""
        place = parse_location(folder)
        self.folder = str(place)
        self.manifest = read_manifest(place)
        self.rows = int(self.manifest["rows"])
        if (rows := sum(shard["rows"] for shard in self.manifest["shards"])) != self.rows:
            raise damaged_file_error(place, MANIFEST, f"its shards hold {rows} of {self.rows} rows")
        told = {str(one["key"]): one for one in self.manifest["keys"]}
        scales = {key + SCALE for key in told}  # not listed; and if they were, no key of their own
        self.keys = tuple(key for key in told if key not in scales)
        self.inputs = InputTable(place, self.rows)
        self._shapes = {key: tuple(told[key]["shape"]) for key in self.keys}
        self._shards = Shards(place, self.manifest["shards"], sums)

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.folder,)

    def __repr__(self) -> str:
        return f"<Features in {self.folder}: {self.rows} rows of {', '.join(self.keys)}>"

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and word in self.keys

    def __getitem__(self, word: str) -> LazyRows:
        """Return the rows of a layer or a key.

        Raises:
            RequestError: there is none of that name, or several, or there are no rows.
            ResultsFileError: the first shard is missing or damaged.
        """
        found = self.choose([word])
        if len(found) > 1:
            raise RequestError(
                f"{word!r} stands for {len(found)} keys in {self.folder}.",
                f"Name one: {', '.join(found)}.",
            )
        if any(one["reduce"] == STATISTICS_ONLY for one in self.manifest["keys"]):
            file = f"{self.folder.rstrip('/')}/{STATISTICS}"
            raise RequestError(
                f"{self.folder} holds statistics of all inputs, and no rows.",
                f"'hookscope show {file}' prints them, hookscope.load({file!r}) returns them.",
            )
        if not self.rows:
            raise RequestError(
                f"{self.folder} holds no rows.", "Capture again, with an --input that is not empty."
            )
        return LazyRows(self._shards, found[0], (self.rows, *self._shapes[found[0]]))

    def choose(self, words: Iterable[str]) -> list[str]:
        """Return the keys that layers, keys or globs over them name; all of them if none is given.

        Raises:
            RequestError: a word names none.
        """
        wanted = choose_keys(list(words), self.keys, self.folder) or [(k, WHOLE) for k in self.keys]
        for key, index in wanted:
            if index != WHOLE:
                raise RequestError(
                    f"A slice stands behind {key}, and whole keys are meant.",
                    f'In Python: hookscope.open("{self.folder}")["{key}"][...].',
                )
        return [key for key, _ in wanted]

    def dataset(self, word: str, *, with_path: bool = False) -> RowsDataset:
        """Return a ``torch.utils.data.Dataset`` of the rows of a layer or a key.

        Args:
            word: the layer or the key.
            with_path: give with each row the path of its input.

        Raises:
            RequestError: there is no such key, or the inputs were no files and have no path.
        """
        if with_path and self.rows and "path" not in self.inputs[0]:
            raise RequestError(
                f"The rows of {self.folder} are items of a Dataset, and have no path.",
                "Leave out with_path: row I is item features.inputs[I]['item'].",
            )
        from hookscope.results.features.torch_dataset import RowsDataset

        return RowsDataset(self[word], self.inputs if with_path else None)


def read_manifest(place: Location) -> dict[str, Any]:
    """Return the manifest of a finished folder.

    Raises:
        RequestError: there is no such folder, or no features in it.
        ResultsFileError: the manifest is damaged.
        StoreError: the run that makes it is not finished.
    """
    if ADDRESS not in place.word and not os.path.isdir(place.word):
        what = "is a file" if os.path.exists(place.word) else "does not exist"
        parent = os.path.dirname(place.word) or "."
        if os.path.exists(place.word) and holds_features(parent):
            raise RequestError(
                f"{place} is a file in a folder of features, and the folder is wanted.",
                f"Name the folder: {parent}/",
            )
        raise RequestError(
            f"The folder {place} {what}.",
            "Name a folder that 'hookscope extract' wrote.",
        )
    manifest = read_json(place, MANIFEST, old=True)
    if manifest is None and any(name.startswith(PARTS) for name in place.names()):
        try:
            plan = read_json(place, PLAN) or {}
        except ResultsFileError:  # the run that goes on says so
            plan = {}
        done = sum(part["rows"] for part in read_parts(place))
        raise StoreError(
            f"The features in {place} are not finished: {done} of {plan.get('rows', '?')} rows"
            " are there.",
            "Run the command that was cut short again, with --resume.",
        )
    if not isinstance(manifest, dict) or not {"rows", "keys", "shards"} <= set(manifest):
        found = f"{MANIFEST} tells of none" if manifest else f"there is no {MANIFEST}"
        raise RequestError(
            f"The folder {place} holds no features: {found}.",
            "Name a folder that 'hookscope extract' wrote.",
        )
    check_schema(place, manifest)
    check_manifest(place, manifest)
    return manifest


_BLOCK = 1 << 22  # bytes


class InputTable(Sequence[dict[str, Any]]):
    """One entry a row: ``row``, ``path``, ``bytes``, ``sha256``, and ``skipped`` if it was.

    Of an item of a Dataset ``row`` and ``item``, its number there.

    Args:
        place: the folder.
        rows: how many there are.
    """

    def __init__(self, place: Location, rows: int) -> None:
        self._place, self._rows = place, rows

    def __reduce__(self) -> tuple[Any, ...]:
        return InputTable, (self._place, self._rows)

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
