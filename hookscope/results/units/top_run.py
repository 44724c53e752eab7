"""The inputs that excite units, channels or directions of a layer most and least."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, cause
from hookscope.results.dimensions import channel_dim
from hookscope.results.features.features import Features
from hookscope.results.similarity.layer_rows import LayerRows, Matrix, check_numbers
from hookscope.results.units.top_inputs import QUANTILES, RankedInput, RankedUnit, TopInputs
from hookscope.results.units.unit_ranking import BINS, QuantileHistogram, UnitRanking
from hookscope.specs.progress import Progress
from hookscope.specs.top_options import DEFAULT_UNITS, MAX, TopOptions

_EXACT = 1 << 27  # bytes of activations up to which quantiles are exact
_BLOCK = 1 << 24  # bytes of float64 values that are read at a time


_FRAMES = {
    True: "In a picture, a frame marks the cell of the layer's grid that has it. The value depends"
    " on more of the input than its cell.",
    False: "Which part of the input has it is not known from this folder; whole inputs are shown.",
}


@dataclass(frozen=True)
class _Layer:
    """A layer and its units.

    Attributes:
        rows: its rows.
        dim: the dimension of the channels in one row; None if a row is a single number.
        units: numbers of channels; empty for directions.
        directions: (n, channels); None for units.
        by: ``max`` or ``mean`` over positions.
    """

    rows: LayerRows
    dim: int | None
    units: tuple[int, ...]
    directions: Matrix | None
    by: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.rows.shape[1:]

    @property
    def channels(self) -> int:
        return 1 if self.dim is None else self.shape[self.dim]

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return tuple(size for dim, size in enumerate(self.shape) if dim != self.dim)

    @property
    def count(self) -> int:
        """Number of units or directions."""
        return len(self.units) if self.directions is None else len(self.directions)

    def activations(self, rows: NDArray[np.intp]) -> tuple[Matrix, NDArray[np.intp]]:
        """Return activation and place of the largest value, (rows, units)."""
        block = self.rows.matrix(rows).reshape(len(rows), *self.shape)
        if self.dim is not None:
            block = np.moveaxis(block, 1 + self.dim, 1)
        block = block.reshape(len(rows), self.channels, -1)
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


def rank_inputs(
    features: Features, options: TopOptions, progress: Progress | None = None
) -> TopInputs:
    """Rank the inputs of a folder by the activation of each unit.

    Args:
        features: the folder.
        options: the layer, the units, and how many inputs.
        progress: called with the number of rows read, and the total.

    Raises:
        RequestError: there is no such layer or unit, several layers match, or a direction does not
            fit.
        ResultsFileError: a file of the folder is damaged.
    """
    layer = _layer(features, options)
    skipped = features.inputs.skipped
    numbers = np.arange(features.rows)
    numbers = numbers[~np.isin(numbers, list(skipped))] if skipped else numbers
    if not len(numbers):
        raise RequestError(f"All inputs of {features.folder} were skipped.")
    exact = 8 * len(numbers) * layer.count <= _EXACT
    most, least = (UnitRanking(layer.count, options.count) for _ in range(2))
    kept: list[Matrix] = []
    sums, counts, infinite = np.zeros(layer.count), np.zeros(layer.count, np.int64), 0
    done, total = 0, len(numbers) * (1 if exact else 2)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(done, total)

    for rows, values, places in _blocks(layer, numbers):
        most.add(values, rows, places)
        least.add(-values, rows, places)
        usable = np.isfinite(values)
        infinite += int(np.sum(np.isinf(values)))
        sums += np.where(usable, values, 0).sum(axis=0)
        counts += np.sum(~np.isnan(values), axis=0)
        if exact:
            kept.append(values)
        advance(len(rows))
    notes = [f"{len(skipped)} rows whose input was skipped are left out."] if skipped else []
    left_out = len(numbers) - counts
    if left_out.any():
        notes.append(
            f"NaN: up to {int(left_out.max())} rows have no activation of a unit, and are left out."
        )
    if infinite:
        notes.append(
            f"{infinite} activations are infinite; they are left out of mean and quantiles."
        )
    if exact:
        quantiles = _exact_quantiles(np.concatenate(kept))
    else:
        quantiles = _histogram_quantiles(layer, numbers, most, least, advance)
        notes.append(f"Quantiles are approximate, to (largest - smallest) / {BINS} of a unit.")
    grid, part = _grid(layer), features.manifest["inputs"].get("visible_part")
    part = part if grid else None
    if layer.positions and options.by == MAX:
        notes.append(
            f"The activation is the largest over the positions. {_FRAMES[part is not None]}"
        )
    inputs = _inputs_of(features, {*most.rows.ravel().tolist(), *least.rows.ravel().tolist()})
    names = range(layer.count) if layer.directions is not None else layer.units
    means = np.divide(sums, counts, out=np.full(layer.count, math.nan), where=counts > 0)
    units = tuple(
        RankedUnit(
            unit,
            _ranked(most, i, 1, inputs, layer),
            _ranked(least, i, -1, inputs, layer),
            tuple(map(float, quantiles[i])),
            float(means[i]),
            int(left_out[i]),
        )
        for i, unit in enumerate(names)
    )
    what = "direction" if layer.directions is not None else "channel" if layer.positions else "unit"
    return TopInputs(
        features.folder,
        str(features.manifest["model"]["spec"]),
        layer.rows.key,
        layer.shape,
        what,
        options.by if layer.positions else "",
        len(numbers),
        grid,
        part,
        units,
        tuple(notes),
    )


def _grid(layer: _Layer) -> tuple[int, int] | None:
    """Height and width of the positions of the largest values, if there are two dimensions."""
    if len(layer.positions) != 2 or layer.by != MAX:
        return None
    return layer.positions[0], layer.positions[1]


def _layer(features: Features, options: TopOptions) -> _Layer:
    keys = features.choose([] if options.layer is None else [options.layer])
    if len(keys) > 1:
        raise RequestError(
            f"{len(keys)} tensors in {features.folder} match, and one is ranked at a time.",
            f"Name one with --layer: {', '.join(keys[:8])}{', ...' if keys[8:] else ''}.",
        )
    rows = LayerRows(keys[0], features[keys[0]])
    check_numbers(rows)
    shape = rows.rows.shape[1:]
    entry = next(entry for entry in features.manifest["keys"] if entry["key"] == keys[0])
    dim = _dimension(keys[0], entry["type"], shape, options.dim)
    channels = 1 if dim is None else shape[dim]
    if options.direction is not None:
        return _Layer(rows, dim, (), _directions(options.direction, channels), options.by)
    units = options.units
    if units is None:
        units = range(min(channels, DEFAULT_UNITS))
    wrong = [unit for unit in units if not 0 <= unit < channels]
    if wrong:
        raise RequestError(
            f"{keys[0]} has no unit {wrong[0]}: its {channels} units are numbered from 0 to"
            f" {channels - 1}.",
            "Name others with --units.",
        )
    return _Layer(rows, dim, tuple(int(unit) for unit in units), None, options.by)


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
        shape = "x".join(map(str, array.shape))
        raise RequestError(
            f"{name} has shape {shape} and dtype {array.dtype}, and the layer has {channels}"
            " channels.",
            f"Give real numbers of shape {channels}, or Nx{channels} for N directions.",
        )
    vectors: Matrix = np.atleast_2d(array).astype(np.float64)
    if not np.isfinite(vectors).all():
        raise RequestError(f"{name} has NaN or infinite entries.")
    return vectors


def _blocks(
    layer: _Layer, numbers: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Matrix, NDArray[np.intp]]]:
    width = max(layer.rows.width, layer.count * math.prod(layer.positions))
    step = max(_BLOCK // (8 * width), 1)
    for at in range(0, len(numbers), step):
        rows = numbers[at : at + step]
        yield rows, *layer.activations(rows)


def _exact_quantiles(values: Matrix) -> Matrix:
    found = np.full((values.shape[1], len(QUANTILES)), math.nan)
    for unit in range(values.shape[1]):
        column = values[np.isfinite(values[:, unit]), unit]
        if len(column):
            found[unit] = np.quantile(column, QUANTILES)
    return found


def _histogram_quantiles(
    layer: _Layer,
    numbers: NDArray[np.intp],
    most: UnitRanking,
    least: UnitRanking,
    advance: Any,
) -> Matrix:
    """Quantiles from a second pass over the rows."""
    low, high = -least.values[:, 0], most.values[:, 0]
    histogram = QuantileHistogram(*(np.nan_to_num(end) for end in (low, high)))
    for rows, values, _ in _blocks(layer, numbers):
        histogram.add(values)
        advance(len(rows))
    return histogram.quantiles(QUANTILES)


def _inputs_of(features: Features, rows: set[int]) -> dict[int, dict[str, Any]]:
    """The entries of some rows, in one pass over the table of inputs."""
    return {row: entry for row, entry in enumerate(features.inputs) if row in rows}


def _ranked(
    ranking: UnitRanking, unit: int, sign: int, inputs: dict[int, dict[str, Any]], layer: _Layer
) -> tuple[RankedInput, ...]:
    found = []
    for value, row, place in zip(
        ranking.values[unit], ranking.rows[unit], ranking.places[unit], strict=True
    ):
        if math.isnan(value):
            continue
        position = None
        if layer.positions and layer.by == MAX:
            position = tuple(int(at) for at in np.unravel_index(place, layer.positions))
        entry = inputs[int(row)]
        name = str(entry.get("path", f"item {entry.get('item')}"))
        digest = entry.get("sha256")
        found.append(
            RankedInput(int(row), sign * float(value), position, name, digest, entry.get("label"))
        )
    return tuple(found)
