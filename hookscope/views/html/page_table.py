"""The table of a page: a row for each tensor, of one file or of two side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hookscope.results.capture_file import CaptureFile
from hookscope.results.numpy_stats import squared_distance, sum_of_squares
from hookscope.results.records import Record
from hookscope.results.stats import ScaledSum
from hookscope.views.html.page import PageCell, PageColumn, PageRow
from hookscope.views.html.page_tree import MissingEntry
from hookscope.views.text.formats import number_text, percent_text, shape_text, visible

NUMBERS = ("mean", "std", "min", "max", "norm")
COMPARED = ("mean", "std", "norm")
_FIRST = (
    PageColumn("#", number=True, about="place in the recorded order"),
    PageColumn("layer"),
    PageColumn("type"),
    PageColumn("what"),
    PageColumn("call", number=True),
    PageColumn("shape"),
)
_LAST = PageColumn("note")
_ZEROS = PageColumn("zeros", number=True, about="share of entries that are exactly zero")
_RATIO = PageColumn(
    "grad/weight", number=True, about="norm of the gradient over that of the weight"
)
_DIFFERENCE_COLUMNS = (
    PageColumn("largest |B-A|", number=True, about="of any entry finite in both"),
    PageColumn("relative", number=True, about="norm of B-A over the norm of A"),
)


@dataclass(frozen=True)
class TensorDifference:
    """How far two tensors of one shape lie apart, over the entries that are finite in both.

    ``largest`` is the largest absolute difference, ``relative`` the norm of the difference over
    that of the first tensor. Both are None where no entry is finite in both.
    """

    largest: float | None
    relative: float | None
    equal: bool


def page_columns(captures: Sequence[CaptureFile]) -> tuple[PageColumn, ...]:
    """Return the columns for these files: compared where two of them have a key in common."""
    keys = [{record.key for record in capture.records} for capture in captures]
    if len(captures) > 1 and keys[0] & keys[1]:
        return (
            *_FIRST,
            *(column for name in COMPARED for column in _pair_columns(name)),
            *_DIFFERENCE_COLUMNS,
            _LAST,
        )
    file = (PageColumn("file"),) if len(captures) > 1 else ()
    ratio = any(r.ratio is not None for capture in captures for r in capture.records)
    numbers = [PageColumn(name, number=True) for name in NUMBERS]
    return (*_FIRST, *file, PageColumn("dtype"), *numbers, _ZEROS, *[_RATIO] * ratio, _LAST)


def page_row(
    columns: Sequence[PageColumn],
    place: int,
    node: int,
    pair: Sequence[Record | None],
    notes: Sequence[str],
    apart: TensorDifference | None,
) -> PageRow:
    """Return the row of a tensor.

    Args:
        columns: of the table.
        place: in the recorded order, from 1.
        node: of its module in the tree.
        pair: its record in each file, None where a file has it not.
        notes: what must not be overlooked of each.
        apart: how far the two lie apart, where they have one shape.
    """
    at, one = next((n, record) for n, record in enumerate(pair) if record)
    compared = _DIFFERENCE_COLUMNS[0] in columns
    note = _pair_note(pair, notes, apart) if compared else notes[at]
    cells = {
        "#": _number_cell(place),
        "layer": PageCell(visible(one.module)),
        "type": PageCell(visible(one.type)),
        "what": PageCell(visible(one.what)),
        "call": _number_cell(one.call),
        "shape": PageCell(" | ".join(dict.fromkeys(shape_text(r.shape) for r in pair if r))),
        "note": PageCell(note, loud=any(notes) or (compared and None in pair)),
    }
    cells |= _compared_cells(pair, apart) if compared else _single_cells(one, "AB"[at])
    return PageRow(node, tuple(cells[column.title] for column in columns))


def missing_page_rows(
    columns: Sequence[PageColumn], missing: Iterable[MissingEntry], nodes: Mapping[str, int]
) -> Iterator[PageRow]:
    """Yield the rows of what the files have not, to stand last: numbers they have none.

    Args:
        columns: of the table.
        missing: a row for each; what two files have not of the same name shares one.
        nodes: places of modules in the tree.
    """
    together: dict[tuple[str, str, int | None], list[MissingEntry]] = {}
    for one in missing:
        together.setdefault((one.module, one.what, one.call), []).append(one)
    for (module, what, call), found in together.items():
        cells = {
            "layer": PageCell(visible(module)),
            "type": PageCell(visible(found[0].type)),
            "what": PageCell(visible(what)),
            "call": _number_cell(call) if call else PageCell(""),
            "file": PageCell(", ".join(one.letter for one in found)),
            "note": PageCell(visible("; ".join(one.told for one in found)), loud=True),
        }
        yield PageRow(
            nodes[module], tuple(cells.get(c.title, PageCell("")) for c in columns), missing=True
        )


def _single_cells(record: Record, file: str) -> dict[str, PageCell]:
    stats = record.stats
    share = stats.zero_share if stats.numel else None
    return {
        "file": PageCell(file),
        "dtype": PageCell(record.dtype),
        **{name: _number_cell(getattr(stats, name)) for name in NUMBERS},
        _ZEROS.title: _number_cell(share, "" if share is None else percent_text(share)),
        _RATIO.title: _number_cell(record.ratio),
    }


def _compared_cells(
    pair: Sequence[Record | None], apart: TensorDifference | None
) -> dict[str, PageCell]:
    cells: dict[str, PageCell] = {}
    for name in COMPARED:
        a, b = (getattr(record.stats, name) if record else None for record in pair)
        between = None
        if a is not None and b is not None:
            between = b - a if name == "mean" else b / a if a else None
        values = zip(_pair_columns(name), (a, b, between), strict=True)
        cells |= {column.title: _number_cell(value) for column, value in values}
    far = (apart.largest, apart.relative) if apart else (None, None)
    return cells | {c.title: _number_cell(v) for c, v in zip(_DIFFERENCE_COLUMNS, far, strict=True)}


def _pair_columns(name: str) -> tuple[PageColumn, ...]:
    """The columns that compare a number of two files; a mean may be near zero, so no quotient."""
    between = "B-A" if name == "mean" else "B/A"
    return tuple(PageColumn(f"{name} {word}", number=True) for word in ("A", "B", between))


def tensor_difference(captures: Sequence[CaptureFile], key: str) -> TensorDifference | None:
    """Return how far the two files' tensors lie apart; None if their shapes differ.

    Both are read block by block, in float64 (complex numbers in complex128).
    """
    if len({capture.record(key).shape for capture in captures}) > 1:
        return None
    largest: float | None = None
    apart, norm = ScaledSum(), ScaledSum()
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
                apart.add(*squared_distance(first, second, gap))
                norm.add(*sum_of_squares(first))
    except Exception:  # values that cannot be read have a note in the panel's figures
        return None
    relative: float | None = 0.0
    if not norm.value and (apart.value or largest is None):
        relative = None
    elif apart.value:
        relative = apart.root_of_share(norm)
    return TensorDifference(largest, relative, equal)


def _number_cell(value: float | int | None, text: str = "") -> PageCell:
    return PageCell(
        text or number_text(value), "" if value is None or math.isnan(value) else repr(value)
    )


def _pair_note(
    pair: Sequence[Record | None], notes: Sequence[str], apart: TensorDifference | None
) -> str:
    told = [f"only in {letter}" for letter, r in zip("BA", pair, strict=True) if r is None]
    told += [f"{letter}: {note}" for letter, note in zip("AB", notes, strict=True) if note]
    if None not in pair and len({r.shape for r in pair if r}) > 1:
        told.append("shapes differ")
    if apart and apart.equal:
        told.append("equal")
    return "; ".join(told)
