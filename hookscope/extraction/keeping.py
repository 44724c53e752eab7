"""What of each batch goes to the folder: rows, whole or made smaller, or statistics alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.axes import axes_of
from hookscope.extraction.bins import EDGES
from hookscope.extraction.components import read_all
from hookscope.extraction.landing import Lander, Landing
from hookscope.extraction.narrowing import Narrower
from hookscope.extraction.planning import Shard
from hookscope.extraction.probing import Column
from hookscope.extraction.reducing import Reducer, reducer
from hookscope.extraction.shards import NAMES, Growing, ShardFile, Stored
from hookscope.results.features.folder import slice_key
from hookscope.results.features.location import Place
from hookscope.specs.reduction import HISTOGRAM, PCA, Reduction, Storing

log = logging.getLogger("hookscope")

ORIGIN = ("key", "module", "type", "call", "what", "kind")


class Keep(Protocol):
    """What is kept of a run's batches.

    Attributes:
        told: what the manifest says of each key.
        row_bytes: of one row on the disk; 0 where no row is kept.
    """

    told: list[dict[str, Any]]
    row_bytes: int

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> Landing:
        """Return what is kept of a batch, for ``write`` of the shard's file.

        Args:
            tensors: what the model gave, rows first; they may be overwritten.
            rows: their numbers.
            bad: the places in the batch of those that hold a blank.
        """

    def begin(self, place: Place, shard: Shard) -> Growing:
        """Begin the file of a shard."""

    def gather(
        self, place: Place, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Return what is known of the files with the results, and of their tensors.

        That is the file of each, and the bytes of all.
        """

    def warn(self) -> None:
        """Tell of values that were lost."""


class KeepRows:
    """Keeps every row, whole or made smaller.

    Attributes:
        reducers: by the key of a column; empty where rows are kept whole.
    """

    def __init__(
        self, columns: Sequence[Column], storing: Storing, image: tuple[int, int] | None
    ) -> None:
        self.reducers: dict[str, Reducer] = {}
        self._narrowers: dict[str, Narrower] = {}
        self.told: list[dict[str, Any]] = []
        self._stored: list[Stored] = []
        self._land = Lander()
        for column in columns:
            key = column.record.key
            if storing.reduction:
                axes = axes_of(column.record.type, column.shape, image)
                made = reducer(storing.reduction, key, column.shape, column.dtype, axes)
                # Of the right shape, until there is what has been fitted.
                self.reducers[key] = replace(made, project=partial(_first, storing.reduction.count))
            if storing.dtype:
                self._narrowers[key] = Narrower(storing.dtype)
            one = torch.zeros(1, *column.shape, dtype=column.dtype)
            for name, tensor in self._kept_of(key, one).items():
                stored = Stored(name, tuple(tensor.shape[1:]), tensor.dtype)
                _demand_storable(stored)
                self._stored.append(stored)
                self.told.append(told_of(column, stored, storing.reduction))
        self.row_bytes = sum(one.bytes for one in self._stored)

    @property
    def to_fit(self) -> dict[str, Reducer]:
        """The reducers that need to be fitted to the first rows."""
        return {k: one for k, one in self.reducers.items() if one.reduction.name == PCA}

    def take_fitted(self, place: Place) -> None:
        """Take what ``fit_all`` wrote."""
        for key, components in read_all(self.to_fit, place).items():
            self.reducers[key] = replace(self.reducers[key], project=components)

    def _kept_of(self, key: str, rows: Tensor) -> dict[str, Tensor]:
        parts = self.reducers[key](rows) if key in self.reducers else {"": rows}
        kept: dict[str, Tensor] = {}
        for suffix, part in parts.items():
            if key in self._narrowers and part.is_floating_point():
                kept |= self._narrowers[key](f"{key}{suffix}", part)
            else:
                kept[f"{key}{suffix}"] = part
        return kept

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> Landing:
        """Return the rows; what a blank gave is NaN, or 0 for integers."""
        kept: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            kept |= self._kept_of(key, tensor)
        for tensor in kept.values() if bad else ():
            hollow = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
            tensor[list(bad)] = hollow
        return self._land(kept)

    def begin(self, place: Place, shard: Shard) -> Growing:
        """Begin a shard, a file of its own that stays."""
        return ShardFile(place, shard, self._stored)

    def gather(
        self, place: Place, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Return the shards, reading none."""
        places = {
            slice_key(one.key, part["first"], part["first"] + part["rows"]): part["file"]
            for part in parts
            for one in self._stored
        }
        return list(parts), places, self.row_bytes * sum(part["rows"] for part in parts)

    def warn(self) -> None:
        """Tell of values that were lost."""
        for key, narrower in self._narrowers.items():
            if narrower.lost:
                log.warning("%s", narrower.warning(key))


def told_of(column: Column, stored: Stored, reduction: Reduction | None) -> dict[str, Any]:
    """What the manifest says of a key."""
    told = {name: getattr(column.record, name) for name in ORIGIN}
    suffix = stored.key.removeprefix(column.record.key)
    told |= {
        "key": stored.key,
        "what": f"{column.record.what}{suffix}",
        "shape": list(stored.shape),
        "dtype": str(stored.dtype).removeprefix("torch."),
        "reduce": reduction.word if reduction else None,
    }
    if reduction and reduction.name == HISTOGRAM:
        told["edges"] = list(EDGES)
    return told


def _first(count: int, vectors: Tensor) -> Tensor:
    return vectors[:, :count]


def _demand_storable(stored: Stored) -> None:
    if stored.dtype not in NAMES:
        raise LayerError(
            f"{stored.key} is of dtype {str(stored.dtype)[6:]}, which shards do not hold.",
            "Leave the layer out.",
        )
