"""Two features folders of the same inputs compared row by row, in blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.error_sums import ChangeMeasures, ChangeSums, is_close
from hookscope.file_analysis.layer_rows import check_same_inputs, row_counter
from hookscope.files.progress_types import Progress
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL, count_verdicts
from hookscope.results.dtypes import widen
from hookscope.results.result import Result
from hookscope.specs.tolerances import ExactDiffOptions
from hookscope.stores.features.features import Features
from hookscope.stores.features.lazy_rows import BLOCK, LazyRows


@dataclass(frozen=True)
class FeatureChange:
    """A key of both folders."""

    key: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    rows: int
    rows_beyond: int | None
    first_row: int | None
    measures: ChangeMeasures | None
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """Return the key as a flat dict."""
        plain = asdict(self)
        return {**plain, **(plain.pop("measures") or {})}


@dataclass(frozen=True)
class FeaturesDiff(Result):
    """How the rows of two features folders differ.

    Attributes:
        a: the reference folder.
        b: the folder it is compared with.
        rows: number of inputs.
        changes: the keys of both, in the order of A.
        only_a: keys of A alone.
        only_b: keys of B alone.
        atol: entries match if ``|a - b| <= atol + rtol * |a|``.
        rtol: the relative part of the tolerance.
        strict: whether a key of one folder alone is a difference.
        notes: what could not be checked, in sentences.
    """

    view = "features_diff"

    a: str
    b: str
    rows: int
    changes: tuple[FeatureChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    atol: float
    rtol: float
    strict: bool
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<FeaturesDiff of {len(self.changes)} keys: {self.counts[DIFFERS]} differ>"

    @property
    def counts(self) -> dict[str, int]:
        """The number of keys with each verdict."""
        return count_verdicts(change.verdict for change in self.changes)

    @property
    def same(self) -> bool:
        """Whether no row is beyond the tolerance; with ``strict`` also whether all keys match."""
        return not self.counts[DIFFERS] and not (self.strict and (self.only_a or self.only_b))

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **asdict(self),
            "same": self.same,
            "counts": self.counts,
            "changes": [change.to_json() for change in self.changes],
        }


def compare_features(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    options: ExactDiffOptions,
    progress: Progress | None = None,
) -> FeaturesDiff:
    """Compare two folders of the same inputs, key by key; memory holds a block of rows of each.

    NaN in both is equal. A row whose input was skipped in both is NaN in both.
    """
    first, second = Features(a), Features(b)
    chosen = first.choose(options.layers), second.choose(options.layers)
    notes = check_same_inputs(first, second)
    keys = [key for key in chosen[0] if key in chosen[1]]
    if not keys:
        raise RequestError(
            f"{first.folder} and {second.folder} have no key in common.",
            "'hookscope similar A B' compares layers with other names.",
        )
    advance = row_counter(progress, first.rows * len(keys))
    tolerances = (options.atol or 0.0, options.rtol or 0.0)
    changes = [_change(first[key], second[key], tolerances, advance) for key in keys]
    return FeaturesDiff(
        first.folder,
        second.folder,
        first.rows,
        tuple(changes),
        tuple(key for key in chosen[0] if key not in chosen[1]),
        tuple(key for key in chosen[1] if key not in chosen[0]),
        *tolerances,
        options.strict,
        tuple(notes),
    )


def _change(
    a: LazyRows, b: LazyRows, tolerances: tuple[float, float], advance: Callable[[int], None]
) -> FeatureChange:
    shapes, dtypes = (a.shape[1:], b.shape[1:]), (str(a.dtype), str(b.dtype))
    if shapes[0] != shapes[1]:
        return FeatureChange(a.key, shapes, dtypes, len(a), None, None, None, DIFFERS)
    sums = ChangeSums(*tolerances)
    beyond, first_row = 0, None
    for first, values in _blocks((a, b)):
        x, y = values
        sums.add(x.reshape(-1), y.reshape(-1))
        rows = _rows_beyond(x.reshape(len(x), -1), y.reshape(len(y), -1), *tolerances)
        if first_row is None and rows.any():
            first_row = first + int(np.argmax(rows))
        beyond += int(rows.sum())
        advance(len(x))
    measures = sums.measures()
    verdict = DIFFERS if beyond else CLOSE if measures.changed else EQUAL
    return FeatureChange(a.key, shapes, dtypes, len(a), beyond, first_row, measures, verdict)


def _blocks(sides: Sequence[LazyRows]) -> Any:
    """Yield the number of the first row of a block, and the values of both sides."""
    count = len(sides[0])
    step = max(BLOCK * count // max(*(side.nbytes for side in sides), 1), 1)
    for first in range(0, count, step):
        last = min(first + step, count)
        yield first, [widen(side.read_range(first, last), side.format) for side in sides]


def _rows_beyond(a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float) -> NDArray[np.bool_]:
    """Which rows have an entry beyond the tolerance; NaN in both is within it."""
    same = (a == b) | ((a != a) & (b != b))
    rows: NDArray[np.bool_] = ~same.all(axis=1)
    if not (atol or rtol) or not rows.any():
        return rows
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        x, y = a[rows].astype(wide), b[rows].astype(wide)
        close = same[rows] | is_close(np.abs(x - y), np.abs(x), atol, rtol)
    rows[rows] = ~close.all(axis=1)
    return rows
