"""From two tensors to a row: the tolerance of their dtypes, the figures, the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hookscope.results.diff.measure import Blocks, measure
from hookscope.results.diff.result import CLOSE, DIFFERS, EQUAL, Figures, Pair
from hookscope.results.records import Record
from hookscope.specs.tolerances import tolerances


@dataclass(frozen=True)
class Judge:
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
    ) -> Pair:
        """Hold two tensors against each other; the blocks are asked for only if they can be."""
        atol, rtol = tolerances(a.dtype, b.dtype, self.atol, self.rtol)
        figures, reasons = Figures(), []
        if a.shape == b.shape:
            figures = measure(blocks_a(), blocks_b(), atol, rtol, self.equal_nan)
            reasons = _nan_reasons(figures, self.equal_nan)
        else:
            reasons.append(f"shape {_lengths(a.shape)} in A, {_lengths(b.shape)} in B")
        if _family(a.dtype) != _family(b.dtype):
            reasons.append(f"{a.dtype} in A, {b.dtype} in B")
        verdict = DIFFERS if reasons or figures.beyond else CLOSE
        if verdict == CLOSE and not figures.unequal and a.dtype == b.dtype:
            verdict = EQUAL
        return Pair(
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


def _nan_reasons(figures: Figures, equal_nan: bool) -> list[str]:
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
