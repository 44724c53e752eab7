"""The table of a page: a row for each tensor, of one file or of two side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hookscope.escapes import visible
from hookscope.files.words import shape_text
from hookscope.results.numpy_stats import squared_distance, sum_of_squares
from hookscope.results.records import Record
from hookscope.results.stats import ScaledSum
from hookscope.specs.patterns import layer_text
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.html.page import PageRow
from hookscope.views.html.page_tree import MissingEntry
from hookscope.views.text.shared_parts import ALERT_STYLE, number_cell, share_cell
from hookscope.views.text.table import Cell, Column

NUMBERS = ("mean", "std", "min", "max", "norm")
COMPARED = ("mean", "std", "norm")
_FIRST = (
    Column("#", right=True, about="position in the recorded order"),
    Column("layer"),
    Column("type"),
    Column("what"),
    Column("call", right=True),
    Column("shape"),
)
_LAST = Column("note")
_ZEROS = Column("zeros", right=True, about="share of values that are exactly zero")
_RATIO = Column(
    "grad/weight", right=True, about="norm of the gradient divided by the norm of the weight"
)
_DIFFERENCE_COLUMNS = (
    Column("largest |B-A|", right=True, about="over values that are finite in both"),
    Column("relative", right=True, about="norm of B-A divided by the norm of A"),
)


@dataclass(frozen=True)
class TensorDifference:
    """The difference of two tensors of one shape, over the entries that are finite in both.

    ``largest`` is the largest absolute difference, ``relative`` the norm of the difference over
    that of the first tensor. Both are None if no entry is finite in both.
    """

    largest: float | None
    relative: float | None
    equal: bool


def page_columns(captures: Sequence[CaptureFile]) -> tuple[Column, ...]:
    """Return the columns for these files: compared where two of them have a key in common."""
    keys = [{record.key for record in capture.records} for capture in captures]
    if len(captures) > 1 and keys[0] & keys[1]:
        return (
            *_FIRST,
            *(column for name in COMPARED for column in _pair_columns(name)),
            *_DIFFERENCE_COLUMNS,
            _LAST,
        )
    file = (Column("file"),) if len(captures) > 1 else ()
    ratio = any(r.ratio is not None for capture in captures for r in capture.records)
    numbers = [Column(name, right=True) for name in NUMBERS]
    return (*_FIRST, *file, Column("dtype"), *numbers, _ZEROS, *[_RATIO] * ratio, _LAST)


def page_row(
    columns: Sequence[Column],
    position: int,
    node: int,
    pair: Sequence[Record | None],
    notes: Sequence[str],
    difference: TensorDifference | None,
) -> PageRow:
    """Return the row of a tensor."""
    file, first = next((n, record) for n, record in enumerate(pair) if record)
    compared = _DIFFERENCE_COLUMNS[0] in columns
    note = _pair_note(pair, notes, difference) if compared else notes[file]
    cells = {
        "#": number_cell(position),
        "layer": Cell(visible(layer_text(first.module))),
        "type": Cell(visible(first.type)),
        "what": Cell(visible(first.what)),
        "call": number_cell(first.call),
        "shape": Cell(" | ".join(dict.fromkeys(shape_text(r.shape) for r in pair if r))),
        "note": Cell(note, style=ALERT_STYLE * (any(notes) or (compared and None in pair))),
    }
    cells |= _compared_cells(pair, difference) if compared else _single_cells(first, "AB"[file])
    return _row_of(node, (cells[column.title] for column in columns))


def _row_of(node: int, cells: Iterable[Cell], kind: str = "") -> PageRow:
    return PageRow(tuple(cells), f"#n{node}", {"node": node}, kind=kind)


def missing_page_rows(
    columns: Sequence[Column], missing: Iterable[MissingEntry], nodes: Mapping[str, int]
) -> Iterator[PageRow]:
    """Yield the rows of missing tensors and layers, which come last and have no numbers."""
    groups: dict[tuple[str, str, int | None], list[MissingEntry]] = {}
    for entry in missing:
        groups.setdefault((entry.module, entry.what, entry.call), []).append(entry)
    for (module, what, call), group in groups.items():
        cells = {
            "layer": Cell(visible(layer_text(module))),
            "type": Cell(visible(group[0].type)),
            "what": Cell(visible(what)),
            "call": number_cell(call) if call else Cell(),
            "file": Cell(", ".join(entry.letter for entry in group)),
            "note": Cell(visible("; ".join(entry.reason for entry in group)), style=ALERT_STYLE),
        }
        yield _row_of(nodes[module], (cells.get(c.title, Cell()) for c in columns), "missing")


def _single_cells(record: Record, file: str) -> dict[str, Cell]:
    stats = record.stats
    share = stats.zero_share if stats.numel else None
    return {
        "file": Cell(file),
        "dtype": Cell(record.dtype),
        **{name: number_cell(getattr(stats, name)) for name in NUMBERS},
        _ZEROS.title: number_cell(None) if share is None else share_cell(share),
        _RATIO.title: number_cell(record.ratio),
    }


def _compared_cells(
    pair: Sequence[Record | None], difference: TensorDifference | None
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name in COMPARED:
        a, b = (getattr(record.stats, name) if record else None for record in pair)
        between = None
        if a is not None and b is not None:
            between = b - a if name == "mean" else b / a if a else None
        values = zip(_pair_columns(name), (a, b, between), strict=True)
        cells |= {column.title: number_cell(value) for column, value in values}
    largest, relative = _DIFFERENCE_COLUMNS
    cells[largest.title] = number_cell(difference.largest if difference else None)
    cells[relative.title] = number_cell(difference.relative if difference else None)
    return cells


def _pair_columns(name: str) -> tuple[Column, ...]:
    """The columns that compare a number of two files; a mean may be near zero, so no quotient."""
    between = "B-A" if name == "mean" else "B/A"
    return tuple(Column(f"{name} {word}", right=True) for word in ("A", "B", between))


def tensor_difference(captures: Sequence[CaptureFile], key: str) -> TensorDifference | None:
    """Return the difference of two tensors, read block by block; None if their shapes differ."""
    if len({capture.record(key).shape for capture in captures}) > 1:
        return None
    largest: float | None = None
    distance, norm = ScaledSum(), ScaledSum()
    equal = True
    try:
        for a, b in zip(*(capture.blocks(key) for capture in captures), strict=True):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            first, second = a.astype(wide), b.astype(wide)
            both = np.isfinite(first) & np.isfinite(second)
            equal = equal and np.array_equal(first, second, equal_nan=True)
            first, second = first[both], second[both]
            with np.errstate(over="ignore"):
                gap = np.abs(second - first)
            if gap.size:
                largest = max(float(gap.max()), largest or 0.0)
                distance.add(*squared_distance(first, second, gap))
                norm.add(*sum_of_squares(first))
    except Exception:  # the figures of the panel say why values cannot be read
        return None
    relative: float | None = 0.0
    if not norm.value and (distance.value or largest is None):
        relative = None
    elif distance.value:
        relative = distance.root_of_share(norm)
    return TensorDifference(largest, relative, equal)


def _pair_note(
    pair: Sequence[Record | None], notes: Sequence[str], difference: TensorDifference | None
) -> str:
    parts = [f"only in {letter}" for letter, r in zip("BA", pair, strict=True) if r is None]
    parts += [f"{letter}: {note}" for letter, note in zip("AB", notes, strict=True) if note]
    if None not in pair and len({r.shape for r in pair if r}) > 1:
        parts.append("shapes differ")
    if difference and difference.equal:
        parts.append("equal")
    return "; ".join(parts)
