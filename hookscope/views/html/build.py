"""From one or two captures to the page as data: rows, the tree with its panels, what was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookscope.results.gradient_flow import gradient_marks
from hookscope.results.reader import OpenCapture
from hookscope.views.html.choice import Choice
from hookscope.views.html.flow import flow_figures
from hookscope.views.html.given import input_picture
from hookscope.views.html.maps import part_of
from hookscope.views.html.missing import missing_in
from hookscope.views.html.model import Entry, Figure, Page
from hookscope.views.html.panels import attempt, look_at
from hookscope.views.html.rows import columns_for, difference, missing_rows, row_for
from hookscope.views.html.told import gradients_of, side_of
from hookscope.views.html.tree import names_in, nodes_of, ordered
from hookscope.views.text.edits import edit_note
from hookscope.views.text.marks import not_finite
from hookscope.views.text.text import count, plural, visible

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
            look_at(letter, capture, record, note, choice)
            for letter, capture, record, note in zip(letters, captures, pair, told, strict=True)
            if record
        ]
        entries.setdefault(first.module, []).append(Entry(visible(key), tuple(looks)))
    missing = tuple(missing_in(captures, letters))
    rows += missing_rows(columns, missing, numbers)
    return Page(
        _title(captures),
        tuple(
            side_of(capture, letter, _pictures(capture))
            for letter, capture in zip(letters, captures, strict=True)
        ),
        tuple(_chosen(captures, choice, len(keys))),
        flow_figures(captures, letters, shown, numbers),
        tuple(nodes_of(captures, places, types, entries, notes, missing)),
        columns,
        tuple(rows),
    )


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
    parts = [
        part_of(record, choice.maps, capture.image)
        for capture in captures
        for record in capture.records
    ][: choice.rows]
    if any(part.maps > 1 for part in parts):
        yield (
            f"Of a tensor with feature maps the first {choice.maps} are drawn, of the first"
            f" sample, at no more than {choice.side} pixels a side."
        )
    if any(part.maps == 1 for part in parts):
        yield "Tensors without feature maps are drawn as one map of rows and columns."
    if any(part.drawn(choice.side) != part.map_shape for part in parts if part.maps):
        yield "Where a map is larger, each pixel is the mean of a field of entries."
