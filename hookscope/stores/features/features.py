"""An open features folder: its keys as lazy arrays, and the table of its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.output_path import ADDRESS
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.results.result import Result
from hookscope.specs.patterns import as_texts
from hookscope.specs.tensor_key import WHOLE, choose_keys
from hookscope.stores.features.folder import (
    INPUTS,
    MANIFEST,
    STATISTICS,
    STATISTICS_ONLY,
    damaged_file_error,
)
from hookscope.stores.features.lazy_rows import SCALE, LazyRows
from hookscope.stores.features.location import Location, parse_location
from hookscope.stores.features.manifest import places_of_maxima, read_manifest
from hookscope.stores.features.shards import Shards

if TYPE_CHECKING:
    from hookscope.stores.features.torch_dataset import RowsDataset

_BLOCK = 1 << 22  # bytes of the table of inputs that are read at a time


class Features(Result):
    """The features that a run over a dataset wrote.

    ``features["layer4"]`` is the array of the rows of a layer (or of a key, ``layer4/output``),
    which stays on disk. ``len(features)`` is the number of rows.

    Attributes:
        columns: names of what is stored beside the rows, such as ``label``.
        folder: the folder of the features.
        manifest: the content of ``manifest.json``: what the features are and how they were made.
        rows: number of inputs, one row each.
        keys: keys of the stored tensors, in execution order.
        inputs: where each row came from.

    Example:
        >>> import hookscope
        >>> features = hookscope.load("sample_models/features")
        >>> len(features), features.keys
        (10, ('pool/output', 'fc/output'))
        >>> features["fc"][2:4].shape
        (2, 10)
    """

    view = "features"

    def __init__(self, folder: str | os.PathLike[str], *, sums: bool = False) -> None:
        """Open the folder; with ``sums`` the CRC-32 of a shard is checked before it is read."""
        location = parse_location(folder)
        self.folder = str(location)
        self.manifest = read_manifest(location)
        self.rows = int(self.manifest["rows"])
        if (rows := sum(shard["rows"] for shard in self.manifest["shards"])) != self.rows:
            problem = f"its shards contain {rows} of {self.rows} rows"
            raise damaged_file_error(location, MANIFEST, problem)
        entries = {str(entry["key"]): entry for entry in self.manifest["keys"]}
        # A scale belongs to its key, even if listed, and so do the places of maxima.
        scales = {key + SCALE for key in entries}
        self._places = places_of_maxima(entries)
        self.keys = tuple(key for key in entries if key not in scales | self._places)
        self.columns = tuple(self.manifest["inputs"].get("columns", ()))
        self.inputs = InputTable(location, self.rows)
        self._shapes = {key: tuple(entry["shape"]) for key, entry in entries.items()}
        self._shards = Shards(location, self.manifest["shards"], sums)

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.folder,)

    def to_json(self) -> dict[str, Any]:
        """Return ``manifest`` and ``folder``."""
        return {**self.manifest, "folder": self.folder}

    def __repr__(self) -> str:
        return f"<Features in {self.folder}: {self.rows} rows of {', '.join(self.keys)}>"

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.keys

    def __getitem__(self, key: str) -> LazyRows:
        """Return the rows of a layer or a key; of ``KEY.index`` the places of the maxima of texts.

        Raises:
            RequestError: there is none of that name, or several, or there are no rows.
            ResultsFileError: the first shard is missing or damaged.
        """
        keys = [key] if key in self._places else self.choose([key])
        if len(keys) > 1:
            raise RequestError(
                f"{key!r} matches {len(keys)} keys in {self.folder}.",
                f"Name one: {', '.join(keys)}.",
            )
        if any(entry["reduce"] == STATISTICS_ONLY for entry in self.manifest["keys"]):
            file = f"{self.folder.rstrip('/')}/{STATISTICS}"
            raise RequestError(
                f"{self.folder} contains statistics of all inputs, but no rows.",
                f"{cite_command('hookscope', 'show', file)} prints them,"
                f" hookscope.load({file!r}) returns them.",
            )
        if not self.rows:
            raise RequestError(
                f"{self.folder} contains no rows.",
                "Run 'hookscope extract' again with an --input that is not empty.",
            )
        [key] = keys
        return LazyRows(self._shards, key, (self.rows, *self._shapes[key]))

    def choose(self, names: Iterable[str]) -> list[str]:
        """Return the keys that match layers, keys or globs of either; all keys if none is given.

        Raises:
            RequestError: a layer, key or glob matches no key.
        """
        chosen = choose_keys(list(names), self.keys, self.folder) or [(k, WHOLE) for k in self.keys]
        for key, index in chosen:
            if index != WHOLE:
                raise RequestError(
                    f"{key} is followed by a slice, but only whole keys can be selected here.",
                    f'Slice in Python: hookscope.load("{self.folder}")["{key}"][...].',
                )
        return [key for key, _ in chosen]

    def column(self, name: str) -> list[Any]:
        """Return a column of the rows, such as their labels; None where a row has no value.

        Raises:
            RequestError: there is no such column.
            ResultsFileError: the table of inputs is damaged.
        """
        if name not in (*self.columns, "path", "item", "sha256"):
            listed = ", ".join(self.columns)
            raise RequestError(
                f"The rows of {self.folder} have no column {name!r}.",
                f"{did_you_mean(name, self.columns)} The columns are {listed}.".strip()
                if listed
                else "Labels are stored for a folder with a subfolder for each class, a Dataset of"
                " pairs, a list @FILE.csv, an archive in the form of WebDataset, and a table of"
                " texts.",
            )
        return [entry.get(name) for entry in self.inputs]

    def places_of_inputs(
        self, named: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> tuple[str, ...]:
        """Return where inputs may be read again: beside the folder, and what the user names."""
        beside = os.path.dirname(os.path.realpath(self.folder))
        return (*([] if ADDRESS in self.folder else [beside]), *as_texts(named))

    def dataset(self, key: str, *, with_path: bool = False) -> RowsDataset:
        """Return a ``torch.utils.data.Dataset`` of the rows of a layer or a key.

        Args:
            key: the layer or the key.
            with_path: return pairs of a row and the path of its input.

        Raises:
            RequestError: there is no such key, or the inputs were not files and have no path.
        """
        if with_path and self.rows and "path" not in self.inputs[0]:
            raise RequestError(
                f"The inputs of {self.folder} were items of a Dataset, which have no path.",
                "Leave out with_path. Row I comes from the item features.inputs[I]['item'].",
            )
        from hookscope.stores.features.torch_dataset import RowsDataset

        return RowsDataset(self[key], self.inputs if with_path else None)


class InputTable(Sequence[dict[str, Any]]):
    """The table of inputs: where each row came from. A line is read when it is requested.

    The entry of a file has ``row``, ``path``, ``bytes`` and ``sha256``, that of an item of a
    Dataset ``row`` and ``item``, its number there. Either may have further columns. The entry of a
    skipped input has ``skipped``.
    """

    def __init__(self, location: Location, rows: int) -> None:
        self._location, self._rows = location, rows

    def __reduce__(self) -> tuple[Any, ...]:
        return InputTable, (self._location, self._rows)

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
            with self._location.open(INPUTS) as file:
                file.seek(int(start))
                line = file.read(int(end - start))
        except OSError as error:
            raise self._damaged(cause(error)) from error
        return self._entry(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = 0
        try:
            with self._location.open(INPUTS) as file:
                for line in file:
                    yield self._entry(line)
                    rows += 1
        except OSError as error:
            raise self._damaged(cause(error)) from error
        if rows != self._rows:
            raise self._damaged(f"it has {rows} lines for {self._rows} rows")

    @property
    def paths(self) -> list[str | None]:
        """The path of each row's input; None for an item of a Dataset."""
        return [entry.get("path") for entry in self]

    @property
    def skipped(self) -> dict[int, str]:
        """The rows whose input could not be used, each with the reason."""
        return {entry["row"]: str(entry["skipped"]) for entry in self if "skipped" in entry}

    @cached_property
    def _lines(self) -> NDArray[np.int64]:
        """The offsets of the beginning and the end of each line, (rows, 2)."""
        offsets, start = [np.zeros(1, np.int64)], 0
        try:
            with self._location.open(INPUTS) as file:
                while block := file.read(_BLOCK):
                    newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
                    offsets.append(newlines + start + 1)
                    start += len(block)
        except OSError as error:
            raise self._damaged(cause(error)) from error
        ends = np.concatenate(offsets)
        if len(ends) != self._rows + 1:
            raise self._damaged(f"it has {len(ends) - 1} lines for {self._rows} rows")
        return np.stack([ends[:-1], ends[1:]], axis=1)

    def _entry(self, line: bytes) -> dict[str, Any]:
        try:
            entry = strict_json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged("a line is not valid JSON") from error
        if not isinstance(entry, dict) or "row" not in entry:
            raise self._damaged("a line has no row number")
        return entry

    def _damaged(self, reason: str) -> ResultsFileError:
        return ResultsFileError(
            f"The table {INPUTS} in {self._location} cannot be read: {reason}.",
            f"'hookscope verify {self._location}' lists all damaged files.",
        )
