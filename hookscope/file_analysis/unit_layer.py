"""A layer of a features folder and its units: their activations, and where the largest value is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, cause
from hookscope.file_analysis.layer_rows import LayerRows, Matrix, check_numbers
from hookscope.files.words import list_first, shape_text
from hookscope.results.dimensions import channel_dim
from hookscope.specs.extract_options import INDEX_SUFFIX, MAX, SPACE, TOKENS, TOPK, parse_reduction
from hookscope.specs.features_options import DEFAULT_UNITS, MEAN, TopOptions
from hookscope.stores.features.features import Features
from hookscope.stores.features.lazy_rows import LazyRows
from hookscope.stores.features.manifest import KeyEntry


@dataclass(frozen=True)
class UnitLayer:
    """A layer and its units."""

    rows: LayerRows
    dim: int | None
    units: tuple[int, ...]
    directions: Matrix | None
    by: str
    index: LazyRows | None
    of_tokens: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.rows.rows.shape[1:]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.dim is None else self.shape[self.dim]

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions in a row; empty if only the largest values are stored."""
        if self.index is not None:
            return ()
        return tuple(size for dim, size in enumerate(self.shape) if dim != self.dim)

    @property
    def count(self) -> int:
        """Number of units or directions."""
        return len(self.units) if self.directions is None else len(self.directions)

    @property
    def over(self) -> str:
        """How positions became one number: ``max``, ``mean``, or empty without positions."""
        return self.by if self.positions or self.index is not None else ""

    @property
    def places_known(self) -> bool:
        """Whether it is known where in an input the activation of a unit is."""
        return self.over == MAX and not (self.index is not None and self.directions is not None)

    def activations(self, rows: NDArray[np.intp]) -> tuple[Matrix, NDArray[np.intp]]:
        """Return activation and place of the largest value, (rows, units).

        Places are 0 if they are stored in ``index``.
        """
        block = self.rows.matrix(rows).reshape(len(rows), *self.shape)
        if self.dim is not None:
            block = np.moveaxis(block, 1 + self.dim, 1)
        block = block.reshape(len(rows), self.channels, -1)
        if self.index is not None:
            block = block[:, :, :1]  # the largest value of each channel comes first
        with np.errstate(invalid="ignore", over="ignore"):
            if self.directions is None:
                block = block[:, list(self.units)]
            else:
                block = np.einsum("rcp,dc->rdp", block, self.directions)
            places = np.zeros(block.shape[:2], np.intp)
            if self.by == MAX:
                places = block.argmax(axis=2)  # NaN counts as the largest
                return np.take_along_axis(block, places[:, :, None], 2)[:, :, 0], places
            return block.mean(axis=2), places

    def locate(
        self, unit: int, rows: NDArray[Any], places: NDArray[Any]
    ) -> Sequence[tuple[int, ...] | None]:
        """Return the position of the largest value in some rows; None where it is not known."""
        if not self.places_known:
            return [None] * len(rows)
        if self.index is None:
            return [tuple(map(int, np.unravel_index(at, self.positions))) for at in places]
        first = (0,) * (self.index.ndim - 2)
        stored = self.index[(rows, self.units[unit], *first)]
        return [(int(at),) if at >= 0 else None for at in stored]


def one_layer(features: Features, names: Sequence[str], done: str) -> LayerRows:
    """Return the only layer of these names, or of the folder; ``done`` is what is done to it."""
    entries = {entry["key"]: entry for entry in features.manifest["keys"]}
    keys = features.choose(names)
    if not set(names) & set(keys):  # the indices of the values of another key are no activations
        keys = [key for key in keys if not _is_index(key, entries)] or keys
    if len(keys) > 1:
        raise RequestError(
            f"{len(keys)} tensors in {features.folder} match, and one is {done} at a time.",
            f"Name one with --layer: {list_first(keys, 8)}.",
        )
    rows = LayerRows(keys[0], features[keys[0]])
    check_numbers(rows)
    return rows


def open_layer(features: Features, options: TopOptions) -> UnitLayer:
    """Return the layer that is ranked."""
    entries = {entry["key"]: entry for entry in features.manifest["keys"]}
    rows = one_layer(features, [] if options.layer is None else [options.layer], "ranked")
    key, entry = rows.key, entries[rows.key]
    shape = rows.rows.shape[1:]
    index = features[f"{key}{INDEX_SUFFIX}"] if _has_index(entry, entries) else None
    if index is not None:
        _check_largest(key, entry, options)
    default = 0 if index is not None and shape else _dimension(key, entry["type"], shape, None)
    dim = default if options.dim is None else _dimension(key, entry["type"], shape, options.dim)
    channels = 1 if dim is None else shape[dim]
    of_tokens = entry.get("positions") == TOKENS and dim == default
    if options.direction is not None:
        vectors = _directions(options.direction, channels)
        return UnitLayer(rows, dim, (), vectors, options.by, index, of_tokens)
    units = options.units
    if units is None:
        units = range(min(channels, DEFAULT_UNITS))
    wrong = [unit for unit in units if not 0 <= unit < channels]
    if wrong:
        raise RequestError(
            f"{key} has no unit {wrong[0]}: its {channels} units are numbered from 0 to"
            f" {channels - 1}.",
            "Name others with --units.",
        )
    numbers = tuple(int(unit) for unit in units)
    return UnitLayer(rows, dim, numbers, None, options.by, index, of_tokens)


def _has_index(entry: KeyEntry, entries: dict[str, KeyEntry]) -> bool:
    """Whether a key has the largest values of each channel, and another one where they are."""
    place = f"{entry['key']}{INDEX_SUFFIX}"
    if not entry["reduce"] or place not in entries:
        return False
    reduction = parse_reduction(entry["reduce"])
    of_channels = reduction.name == TOPK and reduction.over in (SPACE, TOKENS)
    return of_channels or "positions" in entries[place]


def _is_index(key: str, entries: dict[str, KeyEntry]) -> bool:
    values = entries.get(key.removesuffix(INDEX_SUFFIX))
    return values is not None and values["key"] != key and _has_index(values, entries)


def _check_largest(key: str, entry: KeyEntry, options: TopOptions) -> None:
    """Raise RequestError if options need all positions, not only the largest values."""
    stored = f"The rows of {key} are the largest values of each channel"
    if options.by == MEAN:
        raise RequestError(
            f"{stored} (--reduce {entry['reduce']}), so the mean over all positions is not known.",
            "Use --by max, or extract with --reduce mean.",
        )
    if options.dim is not None:
        raise RequestError(f"{stored}, so --channel-dim has no effect.", "Leave out --channel-dim.")


def _dimension(key: str, type: str, shape: tuple[int, ...], dim: int | None) -> int | None:
    """The dimension of the channels in one row; None if a row is a single number."""
    if not shape:
        return None
    if dim is None:
        return max(channel_dim(type, len(shape) + 1) - 1, 0)
    if not -len(shape) <= dim < len(shape):
        raise RequestError(
            f"The rows of {key} have {len(shape)} dimensions, and --channel-dim is {dim}.",
            f"Use 0 to {len(shape) - 1}, or -1 for the last.",
        )
    return dim % len(shape)


def _directions(source: Any, channels: int) -> Matrix:
    """Directions from an array or a ``.npy`` file, (n, channels)."""
    name = "The direction"
    if isinstance(source, str | os.PathLike):
        name = f"The direction in {source}"
        try:
            source = np.load(source, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RequestError(
                f"{name} cannot be read: {cause(error)}.",
                "Write a vector with numpy.save: one number for each channel.",
            ) from error
    array = np.asarray(source)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or array.shape[-1] != channels:
        shape = shape_text(array.shape)
        raise RequestError(
            f"{name} has shape {shape} and dtype {array.dtype}, and the layer has {channels}"
            " channels.",
            f"Give real numbers of shape {channels}, or Nx{channels} for N directions.",
        )
    vectors: Matrix = np.atleast_2d(array).astype(np.float64)
    if not np.isfinite(vectors).all():
        raise RequestError(f"{name} has NaN or infinite entries.")
    return vectors
