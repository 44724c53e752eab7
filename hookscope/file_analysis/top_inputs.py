"""The inputs of a features folder ranked by the activation of units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.layer_rows import Matrix, row_count, row_counter, usable_rows
from hookscope.file_analysis.unit_layer import UnitLayer, open_layer
from hookscope.files.progress_types import Progress
from hookscope.results.result import Result
from hookscope.specs.features_options import MAX, TopOptions
from hookscope.stores.features.features import Features
from hookscope.stores.features.manifest import VisiblePart
from hookscope.stores.features.token_spans import SPANS, Span, split_spans

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


BINS = 1 << 16  # of the histogram that approximates quantiles of very many activations
LARGEST = "The activation is the largest over the tokens."
BRACKETS = "Brackets mark the token that has it."
NUMBER = "'position' is the number of the token, from 0."
NO_SPANS = f"Where the tokens are in the text is not known from this folder: {NUMBER}"
MIXED = (
    "The stored values are the largest of each channel over the tokens, which may be different"
    " tokens. So no token is marked for a direction."
)
_EXACT = 1 << 27  # bytes of activations up to which quantiles are exact
_BLOCK = 1 << 24  # bytes of float64 values that are read at a time
_FRAMES = {
    True: "In a picture, a frame marks the cell of the layer's grid that has it. The value depends"
    " on more of the input than its cell.",
    False: "Which part of the input has it is not known from this folder; whole inputs are shown.",
}


@dataclass(frozen=True)
class RankedInput:
    """An input, and the activation of a unit for it."""

    row: int
    value: float
    position: tuple[int, ...] | None
    name: str
    sha256: str | None
    label: Any = None
    text: str | None = None
    token: str | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class RankedUnit:
    """A unit, channel or direction."""

    unit: int
    most: tuple[RankedInput, ...]
    least: tuple[RankedInput, ...]
    quantiles: tuple[float, ...]
    mean: float
    left_out: int


@dataclass(frozen=True)
class TopInputs(Result):
    """The inputs that excite units most and least.

    Attributes:
        folder: the features folder.
        model: the model that made the features.
        key: the tensor.
        shape: of one row.
        what: ``unit``, ``channel`` or ``direction``.
        by: how positions became one number; empty without positions.
        rows: number of inputs that were ranked.
        texts: whether the inputs are texts.
        grid: height and width of the positions, if they lie on the images; else None.
        visible_part: the part of an image that the grid covers; None if it is not known.
        units: the units.
        notes: what was left out or approximated, in sentences.
    """

    view = "top_inputs"

    folder: str
    model: str
    key: str
    shape: tuple[int, ...]
    what: str
    by: str
    rows: int
    texts: bool
    grid: tuple[int, int] | None
    visible_part: VisiblePart | None
    units: tuple[RankedUnit, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<TopInputs of {self.key}: {len(self.units)} {self.what}s, {self.rows} rows>"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {**asdict(self), "quantiles": list(QUANTILES)}


class UnitRanking:
    """The ``count`` largest activations of each unit, never NaN, with their rows, earlier first."""

    def __init__(self, units: int, count: int) -> None:
        self.values: Matrix = np.full((units, 0), math.nan)
        self.rows: NDArray[Any] = np.empty((units, 0), np.intp)
        self.places: NDArray[Any] = np.empty((units, 0), np.intp)
        self._count = count

    def add(self, values: Matrix, rows: NDArray[Any], places: NDArray[Any]) -> None:
        """Add a block: values and places of (rows, units), and the numbers of the rows."""
        numbers = np.broadcast_to(rows[:, None], values.shape)
        joined = np.concatenate([self.values, values.T], axis=1)
        all_rows = np.concatenate([self.rows, numbers.T], axis=1)
        all_places = np.concatenate([self.places, places.T], axis=1)
        # NaN last; the sort is stable, so earlier rows stay first.
        order = np.argsort(-joined, axis=1, kind="stable")[:, : self._count]
        self.values, self.rows, self.places = (
            np.take_along_axis(array, order, axis=1) for array in (joined, all_rows, all_places)
        )


class ActivationSums:
    """The means of the activations of units, and what is left out of them.

    Attributes:
        missing: for each unit the number of rows where it is NaN.
    """

    def __init__(self, units: int) -> None:
        self.missing: NDArray[np.int64] = np.zeros(units, np.int64)
        self._sums = np.zeros(units)
        self._counts = np.zeros(units, np.int64)
        self._infinite = 0

    def add(self, values: Matrix) -> None:
        """Add a block, (rows, units)."""
        usable = np.isfinite(values)
        self._sums += np.where(usable, values, 0).sum(axis=0)
        self._counts += usable.sum(axis=0)
        self._infinite += int(np.isinf(values).sum())
        self.missing += np.isnan(values).sum(axis=0)

    def means(self) -> Matrix:
        """Return the mean of each unit; NaN if it has no finite activation."""
        means = np.full(len(self._counts), math.nan)
        np.divide(self._sums, self._counts, out=means, where=self._counts > 0)
        return means

    def notes(self) -> Iterator[str]:
        """Yield what was left out, in sentences."""
        if most := int(self.missing.max()):
            yield f"Left out because a unit is NaN there: up to {row_count(most)}."
        if self._infinite:
            yield (
                f"{self._infinite} activations are infinite; they are left out of mean and"
                " quantiles."
            )


class QuantileHistogram:
    """Quantiles of the activations of units, from equal bins between the smallest and the largest.

    A quantile is at most the width of a bin, (largest - smallest) / 65536, from the exact one.
    """

    def __init__(self, low: Matrix, high: Matrix) -> None:
        self._low, self._high = low, high
        self._counts = np.zeros((len(low), BINS), np.int64)

    def add(self, values: Matrix) -> None:
        """Add a block, (rows, units); values that are not finite are left out."""
        span = np.where(self._high > self._low, self._high - self._low, 1.0)
        for unit in range(values.shape[1]):
            column = values[:, unit]
            column = column[np.isfinite(column)]
            bins = ((column - self._low[unit]) / span[unit] * BINS).astype(np.int64)
            self._counts[unit] += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    def quantiles(self, shares: tuple[float, ...]) -> Matrix:
        """Return the quantiles, (units, shares)."""
        found = np.full((len(self._low), len(shares)), math.nan)
        for unit, counts in enumerate(self._counts):
            total = counts.sum()
            if not total:
                continue
            ends = np.cumsum(counts)
            at = np.searchsorted(ends, np.array(shares) * (total - 1), side="right")
            width = (self._high[unit] - self._low[unit]) / BINS
            found[unit] = self._low[unit] + (at + 0.5) * width
        return found


@dataclass(frozen=True)
class UnitActivations:
    """What was measured of the activations of all units."""

    most: UnitRanking
    least: UnitRanking
    sums: ActivationSums
    quantiles: Matrix
    exact: bool

    def rows(self) -> set[int]:
        """Return the numbers of the rows that are ranked for any unit."""
        return {*self.most.rows.ravel().tolist(), *self.least.rows.ravel().tolist()}

    def notes(self) -> Iterator[str]:
        """Yield what was left out or approximated, in sentences."""
        yield from self.sums.notes()
        if not self.exact:
            yield f"Quantiles are approximate, to (largest - smallest) / {BINS} of a unit."


class TextReader(Protocol):
    """Reads the texts of a dataset again, from their files."""

    def read(self, name: str, sha256: str | None) -> str | None:
        """Return the text of a row; None if it is not there any more, or has changed."""

    def notes(self) -> Sequence[str]:
        """Return what could not be read, in sentences."""


def is_text(entry: dict[str, Any]) -> bool:
    """Whether an entry of the table of inputs is that of a text."""
    return isinstance(entry.get("tokens"), int)


def token_at(
    entry: dict[str, Any], position: int, text: str | None
) -> tuple[str | None, Span | None]:
    """Return the characters of a token, or its name if it has none; and where they are in the text.

    >>> token_at({"spans": "[CLS] 0-3 3-11"}, 2, "the capital")
    (' capital', (3, 11))
    """
    spans = split_spans(entry[SPANS])
    if position >= len(spans):  # a tokenizer that counts them in another way
        return None, None
    span = spans[position]
    if isinstance(span, str):
        before = [each[1] for each in spans[:position] if not isinstance(each, str)]
        end = before[-1] if before else 0
        return span, (end, end)
    start, stop = span
    return (text[start:stop] or None if text is not None else None), span


class RankedRows:
    """The rows that are among the most or the least of a unit: their inputs, and texts if any."""

    def __init__(
        self, layer: UnitLayer, features: Features, rows: set[int], texts: TextReader
    ) -> None:
        self._layer = layer
        self._entries = {row: entry for row, entry in enumerate(features.inputs) if row in rows}
        self.texts = {
            row: texts.read(str(entry["path"]), entry.get("sha256"))
            for row, entry in self._entries.items()
            if is_text(entry)
        }

    def position_note(self, *, framed: bool) -> str:
        """Say what the position of the largest value is, and where it is shown."""
        if not self._layer.of_tokens:
            return f"The activation is the largest over the positions. {_FRAMES[framed]}"
        if not self._layer.places_known:
            return MIXED
        if not all(SPANS in entry for entry in self._entries.values()):
            return f"{LARGEST} {NO_SPANS}"
        return f"{LARGEST} {BRACKETS if any(self.texts.values()) else NUMBER}"

    def inputs_of(self, ranking: UnitRanking, unit: int, sign: int) -> tuple[RankedInput, ...]:
        """Return the inputs of one unit, whose values are multiplied by ``sign``."""
        usable = ~np.isnan(ranking.values[unit])
        rows, places = ranking.rows[unit][usable], ranking.places[unit][usable]
        values = sign * ranking.values[unit][usable]
        positions = self._layer.locate(unit, rows, places)
        return tuple(
            self._input(int(row), float(value), position)
            for value, row, position in zip(values, rows, positions, strict=True)
        )

    def _input(self, row: int, value: float, position: tuple[int, ...] | None) -> RankedInput:
        entry, text = self._entries[row], self.texts.get(row)
        token, span = None, None
        if position is not None and self._layer.of_tokens and SPANS in entry:
            token, span = token_at(entry, position[0], text)
        return RankedInput(
            row=row,
            value=value,
            position=position,
            name=str(entry.get("path", f"item {entry.get('item')}")),
            sha256=entry.get("sha256"),
            label=entry.get("label"),
            text=text,
            token=token,
            span=span,
        )


def rank_inputs(
    features: Features,
    options: TopOptions,
    texts: TextReader,
    progress: Progress | None = None,
) -> TopInputs:
    """Rank the inputs of a folder by the activation of each unit."""
    layer = open_layer(features, options)
    numbers, notes = usable_rows(features, None, 1)
    if not len(numbers):
        raise RequestError(f"All inputs of {features.folder} were skipped.")
    found = _measure(layer, numbers, options.count, progress)
    notes += found.notes()
    ranked = RankedRows(layer, features, found.rows(), texts)
    grid = _grid(layer)
    part = features.manifest["inputs"].get("visible_part") if grid else None
    if layer.over == MAX:
        notes.append(ranked.position_note(framed=part is not None))
    notes += texts.notes()
    if len(numbers) < 2 * options.count:
        notes.append(
            f"There are only {row_count(len(numbers))}: some are among both the most and the least."
        )
    means = found.sums.means()
    units = tuple(
        RankedUnit(
            unit,
            ranked.inputs_of(found.most, i, 1),
            ranked.inputs_of(found.least, i, -1),
            tuple(map(float, found.quantiles[i])),
            float(means[i]),
            int(found.sums.missing[i]),
        )
        for i, unit in enumerate(layer.units if layer.directions is None else range(layer.count))
    )
    return TopInputs(
        folder=features.folder,
        model=str(features.manifest["model"]["spec"]),
        key=layer.rows.key,
        shape=layer.shape,
        what="direction" if layer.directions is not None else "channel" if layer.over else "unit",
        by=layer.over,
        rows=len(numbers),
        texts=bool(ranked.texts),
        grid=grid,
        visible_part=part,
        units=units,
        notes=tuple(notes),
    )


def _measure(
    layer: UnitLayer, numbers: NDArray[np.intp], count: int, progress: Progress | None
) -> UnitActivations:
    """Read the rows block by block, twice if the quantiles are not exact."""
    exact = 8 * len(numbers) * layer.count <= _EXACT
    most, least = (UnitRanking(layer.count, count) for _ in range(2))
    sums, kept = ActivationSums(layer.count), list[Matrix]()
    advance = row_counter(progress, len(numbers) * (1 if exact else 2))
    for rows, values, places in _blocks(layer, numbers):
        most.add(values, rows, places)
        least.add(-values, rows, places)
        sums.add(values)
        if exact:
            kept.append(values)
        advance(len(rows))
    if exact:
        quantiles = _exact_quantiles(np.concatenate(kept))
    else:
        quantiles = _histogram_quantiles(layer, numbers, most, least, advance)
    return UnitActivations(most, least, sums, quantiles, exact)


def _grid(layer: UnitLayer) -> tuple[int, int] | None:
    """Height and width of the positions of the largest values, if there are two dimensions."""
    if len(layer.positions) != 2 or layer.by != MAX:
        return None
    return layer.positions[0], layer.positions[1]


def _blocks(
    layer: UnitLayer, numbers: NDArray[np.intp]
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
    layer: UnitLayer,
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
