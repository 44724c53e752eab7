"""Curves of a run as text within a page: float32 in base64, thinned where there are too many.

A column of a table is one row of it or, if the table is thinned, several consecutive rows. A series
has for each column its float32, or the lowest and the highest; NaN as the highest if a row is NaN.
A series with the same number in every row has that number once.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hookscope.files.words import count_text
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import RunTable, TrainingRun

Words = NDArray[np.uint32]  # float32 by their bits, so that MISSING differs from a measured NaN

MISSING = np.uint32(0xFFFFFFFF)  # a NaN that no measurement has: see ``series_words``
NAN = np.float32(np.nan).view(np.uint32)
BLOCK_WORDS = 2**18  # of a block that is decoded as a whole; a longer series has one of its own

OUTPUT, OUTPUT_GRAD = "output", "output.grad"
PARAMETER, PARAMETER_GRAD, UPDATE = "parameter", "parameter.grad", "parameter.update"
RATIO_AIM = 1e-3  # what an update over its weight is compared with
_OUTPUT = re.compile(r"output(\.|$)")


class PackedValues(NamedTuple):
    """Where an array is: ``length`` words of a block, from ``offset``."""

    block: int
    offset: int
    length: int


class ValuePacker:
    """Collects arrays in blocks, which are decoded one by one when they are needed."""

    def __init__(self) -> None:
        self._blocks: list[list[NDArray[np.generic]]] = [[]]
        self._length = 0  # words of the last block

    def add(self, words: Words | NDArray[np.int32]) -> PackedValues:
        """Add an array of words of 32 bits; return where it is."""
        if self._length and self._length + len(words) > BLOCK_WORDS:
            self._blocks.append([])
            self._length = 0
        packed = PackedValues(len(self._blocks) - 1, self._length, len(words))
        self._blocks[-1].append(words)
        self._length += len(words)
        return packed

    def base64_blocks(self) -> tuple[str, ...]:
        """Return each block in base64; its words are little-endian."""
        return tuple(
            base64.b64encode(b"".join(_little_endian(words) for words in block)).decode()
            for block in self._blocks
        )


def _little_endian(words: NDArray[np.generic]) -> bytes:
    return words.astype(words.dtype.newbyteorder("<"), copy=False).tobytes()


@dataclass(frozen=True)
class StepColumns:
    """The columns of a table."""

    rows: int
    per_column: int

    @classmethod
    def for_limit(cls, rows: int, words: int) -> StepColumns:
        """Return columns that take at most about ``words`` words a series."""
        return cls(rows, 1 if rows <= words else -(-rows // max(words // 2, 1)))

    @property
    def thinned(self) -> bool:
        """Whether a column has more than one row."""
        return self.per_column > 1

    @property
    def starts(self) -> NDArray[np.intp]:
        """The first row of each column."""
        return np.arange(0, self.rows, self.per_column)

    @property
    def ends(self) -> NDArray[np.intp]:
        """The last row of each column."""
        return np.minimum(self.starts + self.per_column, self.rows) - 1

    def thin(self, words: Words) -> Words:
        """Return the words of a series: as they are, one if all are equal, or two a column."""
        if len(words) and (words == words[0]).all():
            return words[:1]
        if not self.thinned:
            return words
        present = words != MISSING
        # np.fmin and np.fmax ignore NaN, and with it what is missing.
        values = words.view(np.float32)
        low = np.fmin.reduceat(values, self.starts).view(np.uint32)
        high = np.fmax.reduceat(values, self.starts).view(np.uint32)
        has_nan = np.logical_or.reduceat(present & np.isnan(values), self.starts)
        has_value = np.logical_or.reduceat(present, self.starts)
        low = np.where(np.isnan(low.view(np.float32)), NAN, low)
        high = np.where(has_nan, NAN, high)
        return np.where(has_value[:, None], np.stack([low, high], axis=1), MISSING).ravel()


def series_words(table: RunTable, series: Series) -> Words:
    """Return a series by its bits, uint32 [R]: ``MISSING`` for none, ``NAN`` for any NaN."""
    curve = table.curve(series)
    words = np.full(len(table), MISSING)
    values = np.where(np.isnan(curve.values), NAN, curve.values.view(np.uint32))
    words[np.searchsorted(table.steps, curve.steps)] = values
    return words


def word_limit(tables: Sequence[RunTable], total: int, varying: Sequence[int]) -> list[int]:
    """Return how many words each series of each table may take.

    The tables come in the order of their rights: each may take all that the ones before it left,
    but no more than a fifth if another one follows.
    """
    limits = []
    for n, (table, count) in enumerate(zip(tables, varying, strict=True)):
        share = total if n == len(tables) - 1 else total // 5
        limits.append(max(share // max(count, 1), 32))
        total -= min(len(table), limits[-1]) * count
    return limits


@dataclass(frozen=True)
class RunChart:
    """One chart of curves."""

    title: str
    sources: tuple[tuple[str, str], ...]
    log: bool = False
    line: float | None = None
    nonzero: bool = False


@dataclass(frozen=True)
class RunWaterfall:
    """One picture of layers by steps."""

    title: str
    group: str
    measure: str
    centre: float | None = None


@dataclass(frozen=True)
class PackedSeries:
    """One series of a run."""

    model: str
    layer: int
    label: str
    group: str
    measure: str
    table: int
    values: PackedValues


@dataclass(frozen=True)
class PackedAxis:
    """The columns of a table: the first and the last step of each, int32."""

    starts: PackedValues
    ends: PackedValues
    thinned: bool


@dataclass(frozen=True)
class PackedRun:
    """The curves of one run."""

    label: str
    axes: tuple[PackedAxis, ...]
    series: tuple[PackedSeries, ...]


@dataclass(frozen=True)
class PageLayer:
    """A layer, and the most serious level of its findings; empty without any."""

    name: str
    type: str
    level: str


@dataclass(frozen=True)
class PageModel:
    """A model of the runs, with its layers in execution order."""

    name: str
    type: str
    layers: tuple[PageLayer, ...]


@dataclass(frozen=True)
class RunPageData:
    """What the script draws."""

    runs: tuple[PackedRun, ...]
    models: tuple[PageModel, ...]
    optimizers: tuple[str, ...]
    charts: tuple[RunChart, ...]
    layer_charts: tuple[RunChart, ...]
    waterfalls: tuple[RunWaterfall, ...]

    def to_json(self) -> Markup:
        """Return it as JSON that is safe within a ``script`` element."""
        return Markup(json.dumps(asdict(self), separators=(",", ":")).replace("<", "\\u003c"))


CHARTS = (
    RunChart("Loss", (("loss", "value"),)),
    RunChart("Gradient norm of all parameters", (("gradients", "norm"),), log=True),
    RunChart(
        "Share of the gradient norm that clipping removed",
        (("gradients", "clipped"),),
        nonzero=True,
    ),
    RunChart("Learning rate", (("groups", "lr"),)),
    RunChart("Seconds per step", (("step", "seconds"),)),
    RunChart("Loss scale", (("loss_scale", "value"),), log=True),
    RunChart("Steps skipped by the gradient scaler", (("loss_scale", "skipped"),), nonzero=True),
)
LAYER_CHARTS = (
    RunChart("Activation rms", ((OUTPUT, "rms"),), log=True),
    RunChart("Largest activation", ((OUTPUT, "max"),), log=True),
    RunChart("Share of zeros and of dead units", ((OUTPUT, "zeros"), (OUTPUT, "dead"))),
    RunChart("Gradient norm at the output", ((OUTPUT_GRAD, "norm"),), log=True),
    RunChart("Norm of parameters", ((PARAMETER, "norm"),)),
    RunChart("Gradient norm of parameters", ((PARAMETER_GRAD, "norm"),), log=True),
    RunChart("Update over weight", ((UPDATE, "ratio"),), log=True, line=RATIO_AIM),
    RunChart("Adam's rms", ((PARAMETER, "adam_rms"),), line=1.0),
    RunChart(
        "Entries that are NaN or infinite",
        ((OUTPUT, "nonfinite"), (OUTPUT_GRAD, "nonfinite"), (PARAMETER_GRAD, "nonfinite")),
        nonzero=True,
    ),
)
WATERFALLS = (
    RunWaterfall("Activation rms", OUTPUT, "rms"),
    RunWaterfall("Gradient norm of parameters", PARAMETER_GRAD, "norm"),
    RunWaterfall("Update over weight", UPDATE, "ratio", centre=RATIO_AIM),
)
_DRAWN = {source for chart in (*CHARTS, *LAYER_CHARTS) for source in chart.sources}


def series_group(series: Series) -> str:
    """Return what a series is of, whatever the name of its parameter or of its output.

    >>> series_group(Series("Net", "conv1/bias.grad", "norm"))
    'parameter.grad'
    >>> series_group(Series("Net", "rnn/output.0", "rms"))
    'output'
    >>> series_group(Series("Adam", "groups.0", "lr"))
    'groups'
    """
    if not series.module:
        return series.what.partition(".")[0]
    if _OUTPUT.match(series.what):
        return OUTPUT_GRAD if series.what.endswith(".grad") else OUTPUT
    for group, ending in ((PARAMETER_GRAD, ".grad"), (UPDATE, ".update")):
        if series.what.endswith(ending):
            return group
    return PARAMETER


def series_label(series: Series) -> str:
    """Return the name of a curve among those of its layer or of its run.

    >>> series_label(Series("Net", "conv1/weight.update", "ratio"))
    'weight'
    """
    if not series.module:
        return f"{series.model} {series.what}".strip()
    return series.what.removesuffix(".grad").removesuffix(".update")


def is_drawn(series: Series) -> bool:
    """Whether some chart shows a series."""
    return (series_group(series), series.measure) in _DRAWN


@dataclass(frozen=True)
class RunTables:
    """The two tables of a run, and which of their series are drawn."""

    run: TrainingRun

    @cached_property
    def tables(self) -> tuple[RunTable, RunTable]:
        """The table of all steps, and the table of the sampled ones."""
        return self.run.steps, self.run.layers

    @cached_property
    def drawn(self) -> tuple[tuple[Series, ...], ...]:
        """The series of each table that some chart shows."""
        return tuple(tuple(filter(is_drawn, table.series)) for table in self.tables)


def table_columns(source: RunTables, words: int) -> tuple[StepColumns, ...]:
    """Return the columns of both tables so that all values take at most ``words``, about."""
    varying = [
        sum(len(StepColumns(len(table), 1).thin(series_words(table, one))) > 1 for one in drawn)
        for table, drawn in zip(source.tables, source.drawn, strict=True)
    ]
    limits = word_limit(source.tables, words, varying)
    return tuple(
        StepColumns.for_limit(len(table), limit)
        for table, limit in zip(source.tables, limits, strict=True)
    )


def _packed_run(
    label: str,
    source: RunTables,
    columns: Sequence[StepColumns],
    models: Sequence[PageModel],
    packer: ValuePacker,
) -> PackedRun:
    indexes = {
        (model.name, layer.name): n for model in models for n, layer in enumerate(model.layers)
    }
    axes = tuple(
        _packed_axis(table, of_table, packer)
        for table, of_table in zip(source.tables, columns, strict=True)
    )
    series = tuple(
        PackedSeries(
            one.model,
            indexes.get((one.model, one.module), -1),
            series_label(one),
            series_group(one),
            one.measure,
            n,
            packer.add(columns[n].thin(series_words(table, one))),
        )
        for n, table in enumerate(source.tables)
        for one in _by_group(source.drawn[n])
    )
    return PackedRun(label, axes, series)


def _packed_axis(table: RunTable, columns: StepColumns, packer: ValuePacker) -> PackedAxis:
    steps = table.steps.astype(np.int32)
    starts = packer.add(steps[columns.starts])
    ends = packer.add(steps[columns.ends]) if columns.thinned else starts
    return PackedAxis(starts, ends, columns.thinned)


def _by_group(series: Iterable[Series]) -> list[Series]:
    """In an order in which what is drawn together lies together."""
    return sorted(series, key=lambda one: (series_group(one), one.measure, one.model))


def _thinning_notes(columns: Sequence[StepColumns]) -> Iterable[str]:
    for what, of_table in zip(("steps", "sampled steps"), columns, strict=True):
        if of_table.thinned:
            yield (
                f"The curves of {count_text(of_table.rows)} {what} are thinned: of every"
                f" {count_text(of_table.per_column)} consecutive ones the page has the lowest and"
                " the highest value, and whether one is NaN."
            )
