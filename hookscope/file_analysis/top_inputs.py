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
    exact = 8 * len(numbers) * layer.count <= _EXACT
    most, least = (UnitRanking(layer.count, options.count) for _ in range(2))
    kept: list[Matrix] = []
    sums, counts, infinite = np.zeros(layer.count), np.zeros(layer.count, np.int64), 0
    advance = row_counter(progress, len(numbers) * (1 if exact else 2))

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
    left_out = len(numbers) - counts
    if left_out.any():
        notes.append(
            f"Left out because a unit is NaN there: up to {row_count(int(left_out.max()))}."
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
    ranked = {*most.rows.ravel().tolist(), *least.rows.ravel().tolist()}
    inputs = {row: entry for row, entry in enumerate(features.inputs) if row in ranked}
    contents = {
        row: texts.read(str(entry["path"]), entry.get("sha256"))
        for row, entry in inputs.items()
        if is_text(entry)
    }
    if layer.over == MAX:
        notes.append(_position_note(layer, part is not None, inputs, contents))
    notes += texts.notes()
    if len(numbers) < 2 * options.count:
        notes.append(
            f"There are only {row_count(len(numbers))}: some are among both the most and the least."
        )
    names = range(layer.count) if layer.directions is not None else layer.units
    means = np.divide(sums, counts, out=np.full(layer.count, math.nan), where=counts > 0)
    units = tuple(
        RankedUnit(
            unit,
            _ranked(most, i, 1, layer, inputs, contents),
            _ranked(least, i, -1, layer, inputs, contents),
            tuple(map(float, quantiles[i])),
            float(means[i]),
            int(left_out[i]),
        )
        for i, unit in enumerate(names)
    )
    what = "direction" if layer.directions is not None else "channel" if layer.over else "unit"
    return TopInputs(
        features.folder,
        str(features.manifest["model"]["spec"]),
        layer.rows.key,
        layer.shape,
        what,
        layer.over,
        len(numbers),
        bool(contents),
        grid,
        part,
        units,
        tuple(notes),
    )


def _position_note(
    layer: UnitLayer,
    framed: bool,
    inputs: dict[int, dict[str, Any]],
    texts: dict[int, str | None],
) -> str:
    """What the position of the largest value is, and where it is shown."""
    if not layer.of_tokens:
        return f"The activation is the largest over the positions. {_FRAMES[framed]}"
    if not layer.places_known:
        return MIXED
    if not all(SPANS in entry for entry in inputs.values()):
        return f"{LARGEST} {NO_SPANS}"
    return f"{LARGEST} {BRACKETS if any(texts.values()) else NUMBER}"


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


def _ranked(
    ranking: UnitRanking,
    unit: int,
    sign: int,
    layer: UnitLayer,
    inputs: dict[int, dict[str, Any]],
    texts: dict[int, str | None],
) -> tuple[RankedInput, ...]:
    usable = ~np.isnan(ranking.values[unit])
    rows, places = ranking.rows[unit][usable], ranking.places[unit][usable]
    values = sign * ranking.values[unit][usable]
    found = []
    for value, row, position in zip(values, rows, layer.locate(unit, rows, places), strict=True):
        entry, text = inputs[int(row)], texts.get(int(row))
        name = str(entry.get("path", f"item {entry.get('item')}"))
        token, span = None, None
        if position is not None and layer.of_tokens and SPANS in entry:
            token, span = token_at(entry, position[0], text)
        found.append(
            RankedInput(
                row=int(row),
                value=float(value),
                position=position,
                name=name,
                sha256=entry.get("sha256"),
                label=entry.get("label"),
                text=text,
                token=token,
                span=span,
            )
        )
    return tuple(found)
