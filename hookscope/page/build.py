"""From one or two captures to the page as data: rows, the tree with its panels, what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hookscope.arrays import magnitude
from hookscope.gradient_sizes import gradient_marks
from hookscope.page.choice import Choice
from hookscope.page.drawing import BINS, histogram_figure
from hookscope.page.flow import flow_figures
from hookscope.page.maps import input_picture, part_of, sheet
from hookscope.page.model import Entry, Figure, Look, Node, Page
from hookscope.page.rows import columns_for, difference, row_for
from hookscope.page.told import gradients_of, side_of
from hookscope.page.tree import names_in, ordered
from hookscope.pictures.values import histogram
from hookscope.reader import OpenCapture
from hookscope.records import Record
from hookscope.render.edits import edit_note
from hookscope.render.marks import not_finite
from hookscope.render.text import count, full, per_cent, plural, shape_text, visible

LETTERS = ("A", "B")


def build(captures: Sequence[OpenCapture], choice: Choice) -> Page:
    """Return the page of one capture, or of two side by side.

    Every tensor shown is read once for its histogram, block by block, and the part of it that is
    drawn once more. A figure that cannot be made is a note on why.

    Args:
        captures: one or two.
        choice: how much is shown.
    """
    letters = LETTERS if len(captures) > 1 else ("",)
    keys = list(dict.fromkeys(r.key for capture in captures for r in capture.records))
    shown = keys[: choice.rows]
    types = names_in(captures)
    places = list(ordered(types))
    numbers = {name: n for n, (name, *_) in enumerate(places)}
    notes = [_notes_of(capture) for capture in captures]
    found = [{r.key: r for r in capture.records} for capture in captures]
    entries: dict[str, list[Entry]] = {}
    rows = []
    columns = columns_for(captures)
    for n, key in enumerate(shown, start=1):
        pair = [records.get(key) for records in found]
        first = next(record for record in pair if record)
        told = [note.get(key, "") for note in notes]
        node = numbers[first.module]
        apart = difference(captures, key) if None not in pair and len(pair) > 1 else None
        rows.append(row_for(columns, n, node, pair, told, apart))
        looks = [
            _look(letter, capture, record, note, choice)
            for letter, capture, record, note in zip(letters, captures, pair, told, strict=True)
            if record
        ]
        entries.setdefault(first.module, []).append(Entry(visible(key), tuple(looks)))
    return Page(
        _title(captures),
        tuple(
            side_of(capture, letter, _pictures(capture))
            for letter, capture in zip(letters, captures, strict=True)
        ),
        tuple(_chosen(captures, choice, len(keys))),
        flow_figures(captures, letters, shown, numbers),
        tuple(_nodes(captures, letters, types, places, entries, notes)),
        columns,
        tuple(rows),
    )


def attempt(title: str, draw: Callable[[], Figure | None]) -> tuple[Figure, ...]:
    """Return the figure that ``draw`` makes, a note where that fails, nothing where there is none.

    One figure must not cost the page, whatever the reason.
    """
    try:
        figure = draw()
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        why = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return (Figure(visible(title), failed=visible(why)),)
    return (figure,) if figure else ()


def _title(captures: Sequence[OpenCapture]) -> str:
    words = [str(c.metadata.get("model", {}).get("word", "a model")) for c in captures]
    return visible(" and ".join(dict.fromkeys(words)))


def _pictures(capture: OpenCapture) -> tuple[Figure, ...]:
    return attempt("What went in", lambda: input_picture(capture))


def _notes_of(capture: OpenCapture) -> dict[str, str]:
    """What must not be overlooked, by key: NaN, gradients that stand out, edits."""
    marks = gradient_marks(gradients_of(capture.records))
    told = {}
    for r in capture.records:
        words = (not_finite(r.stats), marks.get(r.key, ""), edit_note(r, capture.metadata))
        told[r.key] = visible(", ".join(filter(None, words)))
    return {key: text for key, text in told.items() if text}


def _look(letter: str, capture: OpenCapture, record: Record, note: str, choice: Choice) -> Look:
    title = visible(record.key)
    figures = attempt(f"Histogram of {title}", lambda: _histogram(capture, record))
    if choice.maps:
        figures += attempt(
            f"Maps of {title}", lambda: sheet(capture, record, choice.maps, choice.side)
        )
    return Look(letter, tuple(_facts(record)), figures, note)


def _histogram(capture: OpenCapture, record: Record) -> Figure | None:
    stats = record.stats
    pieces = (magnitude(piece) for piece in capture.blocks(record.key))
    bins = histogram(pieces, stats, BINS)
    return histogram_figure(visible(record.key), bins, stats.nan, stats.inf) if bins else None


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    stats = record.stats
    yield "shape", shape_text(record.shape)
    yield "dtype", record.dtype
    yield "kind", record.kind
    for name in ("mean", "std", "min", "max", "norm"):
        yield name, full(getattr(stats, name))
    yield "zeros", f"{count(stats.zeros)} of {count(stats.numel)} ({per_cent(stats.zero_share)})"
    if stats.nan or stats.inf:
        yield "NaN, Inf", f"{count(stats.nan)}, {count(stats.inf)}"
    if record.weight_norm is not None:
        yield "weight norm", full(record.weight_norm)
        yield "grad/weight", full(record.ratio)
    if record.aliases:
        yield "also named", visible(", ".join(record.aliases))


def _nodes(
    captures: Sequence[OpenCapture],
    letters: Sequence[str],
    types: dict[str, str],
    places: list[tuple[str, int, int, int, bool]],
    entries: dict[str, list[Entry]],
    notes: list[dict[str, str]],
) -> Iterable[Node]:
    reasons: dict[str, list[str]] = {}
    calls: dict[str, int] = {}
    marks: dict[str, dict[str, None]] = {}
    for capture, letter, told in zip(captures, letters, notes, strict=True):
        where = f" in {letter}" if letter else ""
        for fired in capture.coverage.fired:
            calls[fired.module] = max(fired.calls, calls.get(fired.module, 0))
        for silent in capture.coverage.silent:
            text = f"Never ran{where}: {silent.reason}."
            reasons.setdefault(silent.module, []).append(text)
            marks.setdefault(silent.module, {})["never ran"] = None
        for absent in capture.absent:
            text = f"{absent.what} does not exist{where}: {absent.reason}."
            reasons.setdefault(absent.module, []).append(text)
        for record in capture.records:
            if record.key in told:
                word = told[record.key].partition(" ")[0].rstrip(",:")
                marks.setdefault(record.module, {})[word] = None
    for name, level, place, siblings, opens in places:
        yield Node(
            visible(name),
            visible(name.rpartition(".")[2] or name),
            visible(types[name]),
            level,
            place,
            siblings,
            opens,
            calls.get(name, 0),
            tuple(marks.get(name, ())),
            tuple(map(visible, reasons.get(name, ()))),
            tuple(entries.get(name, ())),
        )


def _chosen(captures: Sequence[OpenCapture], choice: Choice, total: int) -> Iterable[str]:
    """What the page shows of the files, and what it leaves out."""
    if total > choice.rows:
        yield (
            f"The first {plural(choice.rows, 'tensor')} of {count(total)} are shown;"
            f" {count(total - choice.rows)} are left out, to keep the page small."
        )
    if not choice.maps:
        yield "Feature maps are left out, to keep the page small."
        return
    records = [record for capture in captures for record in capture.records]
    parts = [(record, part_of(record, choice.maps)) for record in records[: choice.rows]]
    cut = [part for record, part in parts if part.maps > 1]
    if cut:
        yield (
            f"Of a tensor with feature maps the first {choice.maps} are drawn, of the first"
            f" sample, at no more than {choice.side} pixels a side."
        )
    if any(part.maps == 1 for _, part in parts):
        yield "Tensors without feature maps are drawn as one map of rows and columns."
    if any(part.drawn(choice.side) != part.map_shape for _, part in parts if part.maps):
        yield "Where a map is larger, each pixel is the mean of a field of entries."
