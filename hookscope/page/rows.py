"""The table of a page: a row for each tensor, of one file or of two side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookscope.page.model import Cell, Column, Row
from hookscope.reader import OpenCapture
from hookscope.records import Record
from hookscope.render.text import real, shape_text, visible

NUMBERS = ("mean", "std", "min", "max", "norm")
COMPARED = ("mean", "std", "norm")
_FIRST = (
    Column("#", number=True, about="place in the recorded order"),
    Column("layer"),
    Column("type"),
    Column("what"),
    Column("call", number=True),
    Column("shape"),
)
_LAST = Column("note")


@dataclass(frozen=True)
class Difference:
    """How far two tensors of one shape lie apart, over the entries that are finite in both.

    ``largest`` is the largest absolute difference, ``relative`` the norm of the difference over
    that of the first tensor. Both are None where no entry is finite in both.
    """

    largest: float | None
    relative: float | None
    equal: bool


def columns_for(captures: Sequence[OpenCapture]) -> tuple[Column, ...]:
    """Return the columns for these files."""
    if len(captures) == 1:
        numbers = [Column(name, number=True) for name in NUMBERS]
        zeros = Column("zeros", number=True, about="share of entries that are exactly zero")
        ratio = Column("grad/weight", number=True, about="norm of the gradient over the weight's")
        return (*_FIRST, Column("dtype"), *numbers, zeros, ratio, _LAST)
    numbers = []
    for name in COMPARED:
        numbers += [Column(f"{name} {letter}", number=True) for letter in "AB"]
        numbers.append(
            Column(f"{name} B-A", number=True)
            if name == "mean"
            else Column(f"{name} B/A", number=True)
        )
    apart = (
        Column("largest |B-A|", number=True, about="of any entry finite in both"),
        Column("relative", number=True, about="norm of B-A over the norm of A"),
    )
    return (*_FIRST, *numbers, *apart, _LAST)


def row_for(
    place: int,
    node: int,
    pair: Sequence[Record | None],
    notes: Sequence[str],
    apart: Difference | None,
) -> Row:
    """Return the row of a tensor.

    Args:
        place: in the recorded order, from 1.
        node: of its module in the tree.
        pair: its record in each file, None where a file has it not.
        notes: what must not be overlooked of each.
        apart: how far the two lie apart, where they have one shape.
    """
    one = next(record for record in pair if record)
    first = (
        _number(place),
        Cell(visible(one.module)),
        Cell(visible(one.type)),
        Cell(visible(one.what)),
        _number(one.call),
        Cell(" | ".join(dict.fromkeys(shape_text(r.shape) for r in pair if r))),
    )
    if len(pair) == 1:
        stats = one.stats
        cells = [Cell(one.dtype), *(_number(getattr(stats, name)) for name in NUMBERS)]
        cells += [_number(stats.zero_share if stats.numel else None), _number(one.ratio)]
        return Row(node, (*first, *cells, Cell(notes[0], loud=bool(notes[0]))))
    cells = []
    for name in COMPARED:
        a, b = (getattr(record.stats, name) if record else None for record in pair)
        both = a is not None and b is not None
        quotient = b / a if both and a else None
        cells += [_number(a), _number(b)]
        cells.append(_number((b - a if both else None) if name == "mean" else quotient))
    cells += [_number(apart.largest if apart else None), _number(apart.relative if apart else None)]
    note = _pair_note(pair, notes, apart)
    return Row(node, (*first, *cells, Cell(note, loud=bool(any(notes) or None in pair))))


def difference(captures: Sequence[OpenCapture], key: str) -> Difference | None:
    """Return how far the two files' tensors lie apart; None if their shapes differ.

    Both are read block by block, in float64 (complex numbers in complex128).
    """
    if len({capture.record(key).shape for capture in captures}) > 1:
        return None
    largest: float | None = None
    apart = norm = 0.0
    equal = True
    try:
        for a, b in zip(*(capture.blocks(key) for capture in captures), strict=True):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            first, second = a.astype(wide), b.astype(wide)
            both = np.isfinite(first) & np.isfinite(second)
            equal = equal and np.array_equal(first, second, equal_nan=True)
            first, gap = first[both], np.abs(second[both] - first[both])
            if gap.size:
                largest = max(float(gap.max()), largest or 0.0)
                apart += float(np.dot(gap, gap))
                norm += float(np.sum(np.abs(first) ** 2))
    except Exception:  # values that cannot be read have a note in the panel's figures
        return None
    relative = math.sqrt(apart / norm) if norm else None if apart or largest is None else 0.0
    return Difference(largest, relative, equal)


def _number(value: float | int | None) -> Cell:
    return Cell(real(value), "" if value is None or math.isnan(value) else repr(value))


def _pair_note(
    pair: Sequence[Record | None], notes: Sequence[str], apart: Difference | None
) -> str:
    told = [f"only in {letter}" for letter, r in zip("BA", pair, strict=True) if r is None]
    told += [f"{letter}: {note}" for letter, note in zip("AB", notes, strict=True) if note]
    if None not in pair and len({r.shape for r in pair if r}) > 1:
        told.append("shapes differ")
    if apart and apart.equal:
        told.append("equal")
    return "; ".join(told)
