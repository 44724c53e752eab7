"""The inputs of a features folder ranked by the activation of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from hookscope.errors import RequestError
from hookscope.file_analysis.layer_rows import row_count, usable_rows
from hookscope.file_analysis.unit_activations import QUANTILES, UnitRanking, measure_units
from hookscope.file_analysis.unit_layer import UnitLayer, open_layer
from hookscope.files.progress_types import Progress
from hookscope.results.result import Result
from hookscope.specs.features_options import MAX, TopOptions
from hookscope.stores.features.features import Features
from hookscope.stores.features.manifest import VisiblePart
from hookscope.stores.features.token_spans import SPANS, Span, split_spans

LARGEST = "The activation is the largest over the tokens."
BRACKETS = "Brackets mark the token that has it."
NUMBER = "'position' is the number of the token, from 0."
NO_SPANS = f"Where the tokens are in the text is not known from this folder: {NUMBER}"
MIXED = (
    "The stored values are the largest of each channel over the tokens, which may be different"
    " tokens. So no token is marked for a direction."
)
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
        places: folders or files from which inputs may be read again.
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
    places: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<TopInputs of {self.key}: {len(self.units)} {self.what}s, {self.rows} rows>"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        told = {name: value for name, value in asdict(self).items() if name != "places"}
        return {**told, "quantiles": list(QUANTILES)}


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
    found = measure_units(layer, numbers, options.count, progress)
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
        places=features.places_of_inputs(options.input),
    )


def _grid(layer: UnitLayer) -> tuple[int, int] | None:
    """Height and width of the positions of the largest values, if there are two dimensions."""
    if len(layer.positions) != 2 or layer.by != MAX:
        return None
    return layer.positions[0], layer.positions[1]
