"""Comparison of pairs of tensors: block by block, in float64, without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hookscope.file_analysis.error_sums import (
    Blocks,
    double_precision,
    measure_errors,
    measure_same,
)
from hookscope.file_analysis.record_matches import (
    LayerFilter,
    build_diff,
    match_records,
    select_matches,
)
from hookscope.files.words import shape_text
from hookscope.results.diff_result import (
    CLOSE,
    DIFFERS,
    EQUAL,
    Diff,
    ErrorMetrics,
    TensorComparison,
)
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT
from hookscope.specs.tolerances import engine_tolerances, tolerances
from hookscope.stores.capture_file import CaptureFile, open_capture

RESHAPED = "the same values in another shape: the exporter joined two reshapes"
FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Comparator:
    """Compares pairs of tensors. A tolerance of None is the default for their dtypes.

    With ``engines``, the default is that for two programs; ``reshapes`` says whether one of them
    may be an exporter, which joins reshapes.
    """

    atol: float | None
    rtol: float | None
    equal_nan: bool
    engines: bool = False
    reshapes: bool = True

    def compare(
        self,
        a: Record,
        b: Record,
        by: str,
        blocks_a: Callable[[], Blocks],
        blocks_b: Callable[[], Blocks],
    ) -> TensorComparison:
        """Compare two tensors. The blocks are read only if the shapes are the same."""
        if self.engines:
            largest = _largest(blocks_a())
            atol, rtol = engine_tolerances(a.dtype, b.dtype, largest, self.atol, self.rtol)
        else:
            atol, rtol = tolerances(a.dtype, b.dtype, self.atol, self.rtol)
        metrics, reasons = ErrorMetrics(), []
        shapes = f"shape {shape_text(a.shape)} in A, {shape_text(b.shape)} in B"
        may_reshape = self.engines and self.reshapes
        is_reshaped = may_reshape and a.shape != b.shape and _may_be_reshaped(a, b)
        if a.shape == b.shape or is_reshaped:
            metrics = measure_same(blocks_a(), blocks_b()) or measure_errors(
                blocks_a(), blocks_b(), atol, rtol, self.equal_nan
            )
            reasons = _nan_reasons(metrics, self.equal_nan)
            reasons += [shapes] if is_reshaped and metrics.beyond else []
        else:
            reasons.append(shapes)
        if _dtype_family(a.dtype) != _dtype_family(b.dtype):
            reasons.append(f"{a.dtype} in A, {b.dtype} in B")
        verdict = DIFFERS if reasons or metrics.beyond else CLOSE
        if verdict == CLOSE and not metrics.unequal and a.dtype == b.dtype and not is_reshaped:
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
            reason="; ".join(reasons) or (RESHAPED if is_reshaped else ""),
        )


def _may_be_reshaped(a: Record, b: Record) -> bool:
    """Whether an exporter may have joined two reshapes, which keeps the order of the values."""
    return a.module != ROOT and math.prod(a.shape) == math.prod(b.shape)


def _largest(blocks: Blocks) -> float:
    """The largest absolute value that is finite; 0 if there is none."""
    sizes = (np.abs(double_precision(block)) for block in blocks)
    return max((float(s.max(initial=0, where=np.isfinite(s))) for s in sizes), default=0.0)


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


def compare_captures(
    paths: tuple[FilePath, FilePath],
    prefixes: Mapping[str, str],
    comparator: Comparator,
    layers: LayerFilter,
    kinds: Sequence[str],
    strict: bool,
) -> Diff:
    """Compare two files. Of each tensor one block is in memory at a time."""
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
    return build_diff(
        matches,
        rows,
        strict=strict,
        equal_nan=comparator.equal_nan,
        a=origin_of(a),
        b=origin_of(b),
    )


def origin_of(file: CaptureFile) -> dict[str, object]:
    """Return where the tensors of a file came from."""
    return {"file": os.fspath(file.path), **file.metadata}
