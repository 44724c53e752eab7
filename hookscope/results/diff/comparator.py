"""How far two arrays lie apart, read once, block by block, in float64."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.capture_file import CaptureFile, open_capture
from hookscope.results.diff.diff_result import (
    CLOSE,
    DIFFERS,
    EQUAL,
    Diff,
    ErrorMetrics,
    TensorComparison,
)
from hookscope.results.diff.record_matches import (
    LayerFilter,
    build_diff,
    match_records,
    select_matches,
)
from hookscope.results.numpy_stats import scale, squared_distance, sum_of_squares
from hookscope.results.records import Record
from hookscope.results.stats import ScaledSum, ldexp
from hookscope.specs.tolerances import tolerances

Blocks = Iterable[NDArray[Any]]


def measure_errors(
    a: Blocks, b: Blocks, atol: float, rtol: float, equal_nan: bool = False
) -> ErrorMetrics:
    """Return how two tensors differ that are given in blocks of the same lengths.

    An entry is within tolerance as for ``torch.isclose(b, a)``: equal, or finite and
    |a - b| <= atol + rtol * |a|. The signal-to-noise ratio is that of quantization,
    10 log10(power of the signal / power of the error), as in Oppenheim and Schafer, "Discrete-Time
    Signal Processing" (3rd ed., section 4.8); a is the signal, a - b the error.

    Example:
        >>> found = measure([np.array([3.0, 4.0])], [np.array([3.0, 4.5])], 0.1, 0)
        >>> found.max_abs, found.max_rel, round(found.snr, 6), found.beyond
        (0.5, 0.125, 20.0, 1)
    """
    sums = _Sums()
    with np.errstate(all="ignore"):
        for one, two in zip(a, b, strict=True):
            sums.add(one, two, atol, rtol, equal_nan)
    return sums.figures()


class _Sums:
    """Running sums and largest values of the blocks so far."""

    def __init__(self) -> None:
        self.beyond = self.unequal = self.nan_a = self.nan_b = self.nan_both = 0
        self.largest = self.relative = 0.0
        self.aa, self.bb, self.ab, self.noise = (ScaledSum() for _ in range(4))
        self.seen = False  # a pair that can be compared

    def add(
        self, a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float, equal_nan: bool
    ) -> None:
        gap, same = _gap(a, b)
        a, b = _wide(a), _wide(b)
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        both = nan_a & nan_b
        self.nan_a += int(np.sum(nan_a & ~nan_b))
        self.nan_b += int(np.sum(nan_b & ~nan_a))
        self.nan_both += int(np.sum(both))
        if equal_nan:
            same = same | both
        size = np.abs(a)
        close = same | (np.isfinite(gap) & (gap <= atol + rtol * size))
        self.unequal += int(np.sum(~same))
        self.beyond += int(np.sum(~close))
        told = gap[~(nan_a | nan_b)]
        if told.size:
            self.seen = True
            self.largest = max(self.largest, float(told.max()))
            ratio = _ratio(a, b, gap, size)
            self.relative = max(self.relative, float(ratio[~(nan_a | nan_b)].max()))
        finite = np.isfinite(a) & np.isfinite(b)
        a, b, gap = (x if finite.all() else x[finite] for x in (a, b, gap))
        # Not np.dot: for arrays as short as these its threads cost more than they save, and where
        # other processes use the processors too, twenty times as much.
        (aa, more), (bb, less) = sum_of_squares(a), sum_of_squares(b)
        self.aa.add(aa, more)
        self.bb.add(bb, less)
        more, less = more // 2, less // 2
        product = scale(a, -more) * np.conj(scale(b, -less))
        self.ab.add(float(np.sum(product.real)), more + less)
        self.noise.add(*squared_distance(a, b, gap))

    def figures(self) -> ErrorMetrics:
        counts = (self.beyond, self.unequal, self.nan_a, self.nan_b, self.nan_both)
        if not self.seen:
            return ErrorMetrics(None, None, None, None, *counts)
        return ErrorMetrics(self.largest, self.relative, self._cosine(), self._snr(), *counts)

    def _cosine(self) -> float | None:
        if not self.aa.value or not self.bb.value:
            return None
        if not self.unequal:
            return 1.0
        length = math.sqrt(self.aa.value) * math.sqrt(self.bb.value)
        power = self.ab.exponent - (self.aa.exponent + self.bb.exponent) // 2
        return max(-1.0, min(1.0, ldexp(self.ab.value / length, power)))

    def _snr(self) -> float | None:
        if not self.unequal:
            return math.inf
        if not self.noise.value:
            return None  # all that differs is not finite
        return 10 * (self.aa.log10() - self.noise.log10()) if self.aa.value else -math.inf


def _gap(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """|a - b| in float64, 0 where both are the same number, and where that is."""
    same = np.asarray(a == b)
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        # Differences of whole numbers modulo 2**64: exact, where float64 has not the digits.
        high, low = (np.asarray(x(a, b)).astype(np.uint64) for x in (np.maximum, np.minimum))
        return (high - low).astype(np.float64), same
    gap = np.abs(_wide(a) - _wide(b))
    return np.where(same, 0.0, gap), same  # the difference of two infinities is no number


def _ratio(
    a: NDArray[Any], b: NDArray[Any], gap: NDArray[np.float64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|a - b| / |a| of each entry; 0 where both are the same number."""
    ratio = np.where(gap == 0, 0.0, gap / size)
    infinite = np.isinf(gap)
    if infinite.any():
        # Where a is infinite, the quotient is NaN. Where a and b are finite, only their distance is
        # beyond the largest float.
        ratio[infinite] = np.inf
        far = infinite & np.isfinite(a) & np.isfinite(b)
        ratio[far] = np.abs(a[far] / 4 - b[far] / 4) / np.abs(a[far] / 4)
    return ratio


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@dataclass(frozen=True)
class Comparator:
    """How strictly pairs are judged; None for a tolerance means that of their dtypes."""

    atol: float | None
    rtol: float | None
    equal_nan: bool

    def pair(
        self,
        a: Record,
        b: Record,
        by: str,
        blocks_a: Callable[[], Blocks],
        blocks_b: Callable[[], Blocks],
    ) -> TensorComparison:
        """Hold two tensors against each other; the blocks are asked for only if they can be."""
        atol, rtol = tolerances(a.dtype, b.dtype, self.atol, self.rtol)
        figures, reasons = ErrorMetrics(), []
        if a.shape == b.shape:
            figures = measure_errors(blocks_a(), blocks_b(), atol, rtol, self.equal_nan)
            reasons = _nan_reasons(figures, self.equal_nan)
        else:
            reasons.append(f"shape {_lengths(a.shape)} in A, {_lengths(b.shape)} in B")
        if _family(a.dtype) != _family(b.dtype):
            reasons.append(f"{a.dtype} in A, {b.dtype} in B")
        verdict = DIFFERS if reasons or figures.beyond else CLOSE
        if verdict == CLOSE and not figures.unequal and a.dtype == b.dtype:
            verdict = EQUAL
        return TensorComparison(
            a.key,
            b.key,
            by,
            a.type,
            (a.shape, b.shape),
            (a.dtype, b.dtype),
            math.prod(a.shape),
            figures,
            atol,
            rtol,
            verdict,
            "; ".join(reasons),
        )


def _nan_reasons(figures: ErrorMetrics, equal_nan: bool) -> list[str]:
    told = [("A alone", figures.nan_a), ("B alone", figures.nan_b)]
    if not equal_nan:
        told.append(("both (--equal-nan takes them as equal)", figures.nan_both))
    return [f"NaN in {where}: {number:,}" for where, number in told if number]


def _family(dtype: str) -> str:
    """What a dtype is a width of: numbers of one family are compared whatever theirs is."""
    names = ("bfloat", "float", "complex", "bool")
    found = next((name for name in names if dtype.startswith(name)), "integer")
    return "float" if found == "bfloat" else found


def _lengths(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


Word = str | os.PathLike[str]


def compare_captures(
    words: tuple[Word, Word],
    prefixes: Mapping[str, str],
    judge: Comparator,
    choice: LayerFilter,
    kinds: Sequence[str],
    strict: bool,
) -> Diff:
    """Compare two files; of each tensor a block is in memory.

    Args:
        words: the two files.
        prefixes: prefixes of names in A and what stands for them in B.
        judge: decides what differs.
        choice: the layers.
        kinds: ``output``, ``input``, their gradients included; none means everything.
        strict: whether what has no partner is a difference.

    Raises:
        ResultsFileError: a file cannot be read.
        RequestError: nothing of A has a partner in B, or a pattern or prefix matches nothing.
    """
    a, b = files = open_capture(words[0]), open_capture(words[1])
    choice.check_layers([record for file in files for record in file.records])

    def chosen(record: Record) -> bool:
        return choice(record) and (not kinds or record.kind.partition(".")[0] in kinds)

    found = select_matches(match_records(a.records, b.records, prefixes), chosen, chosen)
    pairs = [
        judge.pair(one, two, by, partial(a.blocks, one.key), partial(b.blocks, two.key))
        for one, two, by in found.pairs
    ]
    origin = {"a": _origin(a), "b": _origin(b)}
    return build_diff(found, pairs, strict=strict, equal_nan=judge.equal_nan, **origin)


def _origin(file: CaptureFile) -> dict[str, object]:
    return {"file": os.fspath(file.path), **file.metadata}
