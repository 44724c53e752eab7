"""A folder of features, opened: its keys as lazy arrays, the table of its inputs. Without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.results.features.folder import (
    MANIFEST,
    PARTS,
    PLAN,
    STATISTICS,
    STATISTICS_ONLY,
    damaged,
    read_json,
)
from hookscope.results.features.lazy import SCALE, Rows
from hookscope.results.features.location import Place, place_of
from hookscope.results.features.manifest import parts_of
from hookscope.results.features.schema import demand_known, demand_whole
from hookscope.results.features.shards import Shards
from hookscope.results.features.table import Inputs
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
        place = place_of(folder)
        self.folder = str(place)
        self.manifest = read_manifest(place)
        self.rows = int(self.manifest["rows"])
        if (rows := sum(shard["rows"] for shard in self.manifest["shards"])) != self.rows:
            raise damaged(place, MANIFEST, f"its shards hold {rows} of {self.rows} rows")
        told = {str(one["key"]): one for one in self.manifest["keys"]}
        scales = {key + SCALE for key in told}  # not listed; and if they were, no key of their own
        self.keys = tuple(key for key in told if key not in scales)
        self.inputs = Inputs(place, self.rows)
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

    def __getitem__(self, word: str) -> Rows:
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
        return Rows(self._shards, found[0], (self.rows, *self._shapes[found[0]]))

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


def read_manifest(place: Place) -> dict[str, Any]:
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
        done = sum(part["rows"] for part in parts_of(place))
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
    demand_known(place, manifest)
    demand_whole(place, manifest)
    return manifest
