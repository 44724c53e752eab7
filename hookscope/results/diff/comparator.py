"""Comparison of pairs of tensors: read once, block by block, in float64, without torch."""

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

FilePath = str | os.PathLike[str]
Blocks = Iterable[NDArray[Any]]


@dataclass(frozen=True)
class Comparator:
    """Compares pairs of tensors. A tolerance of None is the default for their dtypes."""

    atol: float | None
    rtol: float | None
    equal_nan: bool

    def compare(
        self,
        a: Record,
        b: Record,
        by: str,
        blocks_a: Callable[[], Blocks],
        blocks_b: Callable[[], Blocks],
    ) -> TensorComparison:
        """Compare two tensors. The blocks are read only if the shapes are the same.

        Args:
            a: record of A's tensor.
            b: record of B's tensor.
            by: how they were matched.
            blocks_a: returns the blocks of A's tensor.
            blocks_b: returns the blocks of B's tensor.
        """
        atol, rtol = tolerances(a.dtype, b.dtype, self.atol, self.rtol)
        metrics, reasons = ErrorMetrics(), []
        if a.shape == b.shape:
            metrics = measure_errors(blocks_a(), blocks_b(), atol, rtol, self.equal_nan)
            reasons = _nan_reasons(metrics, self.equal_nan)
        else:
            reasons.append(f"shape {_shape_text(a.shape)} in A, {_shape_text(b.shape)} in B")
        if _dtype_family(a.dtype) != _dtype_family(b.dtype):
            reasons.append(f"{a.dtype} in A, {b.dtype} in B")
        verdict = DIFFERS if reasons or metrics.beyond else CLOSE
        if verdict == CLOSE and not metrics.unequal and a.dtype == b.dtype:
            verdict = EQUAL
        return TensorComparison(
            key=a.key,
            other=b.key,
            by=by,
            type=a.type,
            shapes=(a.shape, b.shape),
            dtypes=(a.dtype, b.dtype),
            numel=math.prod(a.shape),
            figures=metrics,
            atol=atol,
            rtol=rtol,
            verdict=verdict,
            reason="; ".join(reasons),
        )


def _nan_reasons(metrics: ErrorMetrics, equal_nan: bool) -> list[str]:
    counts = [("A alone", metrics.nan_a), ("B alone", metrics.nan_b)]
    if not equal_nan:
        counts.append(("both (equal with --equal-nan)", metrics.nan_both))
    return [f"NaN in {where}: {count:,}" for where, count in counts if count]


def _dtype_family(dtype: str) -> str:
    """The kind of number of a dtype. Dtypes of one family are compared whatever their width."""
    names = ("bfloat", "float", "complex", "bool")
    family = next((name for name in names if dtype.startswith(name)), "integer")
    return "float" if family == "bfloat" else family


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def compare_captures(
    paths: tuple[FilePath, FilePath],
    prefixes: Mapping[str, str],
    comparator: Comparator,
    layers: LayerFilter,
    kinds: Sequence[str],
    strict: bool,
) -> Diff:
    """Compare two files. Of each tensor one block is in memory at a time.

    Args:
        paths: the two files.
        prefixes: prefixes of names in A and their replacements in B.
        comparator: compares a pair of tensors.
        layers: selects the layers.
        kinds: ``output`` and ``input``, each with its gradients; all kinds if empty.
        strict: whether unmatched tensors count as differences.

    Raises:
        ResultsFileError: a file cannot be read.
        RequestError: no tensor of A matches one of B, or a pattern or prefix matches nothing.
    """
    a, b = files = open_capture(paths[0]), open_capture(paths[1])
    layers.check_layers([record for file in files for record in file.records])

    def selected(record: Record) -> bool:
        return layers(record) and (not kinds or record.kind.partition(".")[0] in kinds)

    matches = select_matches(match_records(a.records, b.records, prefixes), selected, selected)
    rows = [
        comparator.compare(
            record_a,
            record_b,
            by,
            partial(a.blocks, record_a.key),
            partial(b.blocks, record_b.key),
        )
        for record_a, record_b, by in matches.pairs
    ]
    origin = {"a": _origin(a), "b": _origin(b)}
    return build_diff(matches, rows, strict=strict, equal_nan=comparator.equal_nan, **origin)


def _origin(file: CaptureFile) -> dict[str, object]:
    return {"file": os.fspath(file.path), **file.metadata}


def measure_errors(
    a: Blocks, b: Blocks, atol: float, rtol: float, equal_nan: bool = False
) -> ErrorMetrics:
    """Return how two tensors differ, given in blocks of the same lengths.

    An entry is within tolerance as in ``torch.isclose(b, a)``: equal, or finite and
    |a - b| <= atol + rtol * |a|. The signal-to-noise ratio is that of quantization,
    10 log10(power of the signal / power of the error), as in Oppenheim and Schafer, "Discrete-Time
    Signal Processing" (3rd ed., section 4.8), with a as signal and a - b as error.

    Example:
        >>> metrics = measure_errors([np.array([3.0, 4.0])], [np.array([3.0, 4.5])], 0.1, 0)
        >>> metrics.max_abs, metrics.max_rel, round(metrics.snr, 6), metrics.beyond
        (0.5, 0.125, 20.0, 1)
    """
    sums = _Sums()
    with np.errstate(all="ignore"):
        for block_a, block_b in zip(a, b, strict=True):
            sums.add(block_a, block_b, atol, rtol, equal_nan)
    return sums.metrics()


class _Sums:
    """Running sums and maxima over blocks."""

    def __init__(self) -> None:
        self.beyond = self.unequal = self.nan_a = self.nan_b = self.nan_both = 0
        self.largest = self.relative = 0.0
        self.aa, self.bb, self.ab, self.noise = (ScaledSum() for _ in range(4))
        self.comparable = False  # whether a pair of entries without NaN was seen

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
        numbers = ~(nan_a | nan_b)
        if numbers.any():
            self.comparable = True
            self.largest = max(self.largest, float(gap[numbers].max()))
            ratio = _ratio(a, b, gap, size)
            self.relative = max(self.relative, float(ratio[numbers].max()))
        finite = np.isfinite(a) & np.isfinite(b)
        a, b, gap = (x if finite.all() else x[finite] for x in (a, b, gap))
        # Not np.dot: for short arrays its threads cost more than they save, and twenty times as
        # much if other processes use the processors.
        (aa, exponent_a), (bb, exponent_b) = sum_of_squares(a), sum_of_squares(b)
        self.aa.add(aa, exponent_a)
        self.bb.add(bb, exponent_b)
        half_a, half_b = exponent_a // 2, exponent_b // 2
        product = scale(a, -half_a) * np.conj(scale(b, -half_b))
        self.ab.add(float(np.sum(product.real)), half_a + half_b)
        self.noise.add(*squared_distance(a, b, gap))

    def metrics(self) -> ErrorMetrics:
        counts = (self.beyond, self.unequal, self.nan_a, self.nan_b, self.nan_both)
        if not self.comparable:
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
            return None  # only entries that are not finite differ
        return 10 * (self.aa.log10() - self.noise.log10()) if self.aa.value else -math.inf


def _gap(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """|a - b| in float64, 0 for the same number, and a mask of the same numbers."""
    same = np.asarray(a == b)
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        # Differences of integers modulo 2**64 are exact; float64 has too few digits.
        high, low = (np.asarray(x(a, b)).astype(np.uint64) for x in (np.maximum, np.minimum))
        return (high - low).astype(np.float64), same
    gap = np.abs(_wide(a) - _wide(b))
    return np.where(same, 0.0, gap), same  # the difference of equal infinities is NaN


def _ratio(
    a: NDArray[Any], b: NDArray[Any], gap: NDArray[np.float64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|a - b| / |a| of each entry; 0 for the same number."""
    ratio = np.where(gap == 0, 0.0, gap / size)
    infinite = np.isinf(gap)
    if infinite.any():
        # If a is infinite, the quotient is NaN. If a and b are finite, their distance is beyond the
        # largest float.
        ratio[infinite] = np.inf
        far = infinite & np.isfinite(a) & np.isfinite(b)
        ratio[far] = np.abs(a[far] / 4 - b[far] / 4) / np.abs(a[far] / 4)
    return ratio


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
