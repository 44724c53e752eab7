"""From one or two captures to the page as data: rows, the tree with its panels, what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hookscope.results.capture_file import CaptureFile
from hookscope.results.gradient_flow import gradient_marks
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.views.html.page import Page, PageFigure, PanelEntry, TensorPanel
from hookscope.views.html.page_header import file_summary, gradient_records
from hookscope.views.html.page_images import drawn_part, input_figure, map_figure
from hookscope.views.html.page_limits import PageLimits
from hookscope.views.html.page_table import (
    missing_page_rows,
    page_columns,
    page_row,
    tensor_difference,
)
from hookscope.views.html.page_tree import missing_entries, module_types, page_nodes, tree_positions
from hookscope.views.html.svg import BINS, flow_figures, histogram_figure
from hookscope.views.images.tensor_view import histogram
from hookscope.views.text.capture import edit_note
from hookscope.views.text.formats import (
    count_text,
    full_text,
    percent_text,
    plural,
    shape_text,
    visible,
)
from hookscope.views.text.shared_parts import nonfinite_note

LETTERS = ("A", "B")


def build_page(captures: Sequence[CaptureFile], choice: PageLimits) -> Page:
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
    types = module_types(captures)
    places = list(tree_positions(types))
    numbers = {name: n for n, (name, *_) in enumerate(places)}
    notes = [_notes_by_key(capture) for capture in captures]
    found = [{r.key: r for r in capture.records} for capture in captures]
    entries: dict[str, list[PanelEntry]] = {}
    rows = []
    columns = page_columns(captures)
    for n, key in enumerate(shown, start=1):
        pair = [records.get(key) for records in found]
        first = next(record for record in pair if record)
        told = [note.get(key, "") for note in notes]
        node = numbers[first.module]
        apart = tensor_difference(captures, key) if None not in pair and len(pair) > 1 else None
        rows.append(page_row(columns, n, node, pair, told, apart))
        looks = [
            tensor_panel(letter, capture, record, note, choice)
            for letter, capture, record, note in zip(letters, captures, pair, told, strict=True)
            if record
        ]
        entries.setdefault(first.module, []).append(PanelEntry(visible(key), tuple(looks)))
    missing = tuple(missing_entries(captures, letters))
    rows += missing_page_rows(columns, missing, numbers)
    return Page(
        _title(captures),
        tuple(
            file_summary(capture, letter, _input_figures(capture))
            for letter, capture in zip(letters, captures, strict=True)
        ),
        tuple(_selection_notes(captures, choice, len(keys))),
        flow_figures(captures, letters, shown, numbers),
        tuple(page_nodes(captures, places, types, entries, notes, missing)),
        columns,
        tuple(rows),
    )


def _title(captures: Sequence[CaptureFile]) -> str:
    words = [str(c.metadata.get("model", {}).get("word", "a model")) for c in captures]
    return visible(" and ".join(dict.fromkeys(words)))


def _input_figures(capture: CaptureFile) -> tuple[PageFigure, ...]:
    return figure_or_note("What went in", lambda: input_figure(capture))


def _notes_by_key(capture: CaptureFile) -> dict[str, str]:
    """What must not be overlooked, by key: NaN, gradients that stand out, edits."""
    marks = gradient_marks(gradient_records(capture.records))
    told = {}
    for r in capture.records:
        words = (nonfinite_note(r.stats), marks.get(r.key, ""), edit_note(r, capture.metadata))
        told[r.key] = visible(", ".join(filter(None, words)))
    return {key: text for key, text in told.items() if text}


def _selection_notes(
    captures: Sequence[CaptureFile], choice: PageLimits, total: int
) -> Iterable[str]:
    """What the page shows of the files, and what it leaves out."""
    if total > choice.rows:
        yield (
            f"The first {plural(choice.rows, 'tensor')} of {count_text(total)} are shown;"
            f" {count_text(total - choice.rows)} are left out, to keep the page small."
        )
    if not choice.maps:
        yield "Feature maps are left out, to keep the page small."
        return
    parts = [
        drawn_part(record, choice.maps, capture.image)
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


def tensor_panel(
    letter: str, capture: CaptureFile, record: Record, note: str, choice: PageLimits
) -> TensorPanel:
    """Return what one file holds of a tensor, with as many figures as ``choice`` lets there be."""
    title = visible(record.key)
    figures = figure_or_note(f"Histogram of {title}", lambda: _histogram_figure(capture, record))
    if choice.maps:
        figures += figure_or_note(
            f"Maps of {title}", lambda: map_figure(capture, record, choice.maps, choice.side)
        )
    return TensorPanel(letter, tuple(_tensor_facts(record)), figures, note)


def _histogram_figure(capture: CaptureFile, record: Record) -> PageFigure | None:
    stats = record.stats
    pieces = (magnitude(piece) for piece in capture.blocks(record.key))
    bins = histogram(pieces, stats, BINS)
    return histogram_figure(visible(record.key), bins, stats.nan, stats.inf) if bins else None


def _tensor_facts(record: Record) -> Iterable[tuple[str, str]]:
    stats = record.stats
    yield "shape", shape_text(record.shape)
    yield "dtype", record.dtype
    yield "kind", record.kind
    for name in ("mean", "std", "min", "max", "norm"):
        yield name, full_text(getattr(stats, name))
    yield (
        "zeros",
        f"{count_text(stats.zeros)} of {count_text(stats.numel)} ({percent_text(stats.zero_share)})",
    )
    if stats.nan or stats.inf:
        yield "NaN, Inf", f"{count_text(stats.nan)}, {count_text(stats.inf)}"
    if record.weight_norm is not None:
        yield "weight norm", full_text(record.weight_norm)
        yield "grad/weight", full_text(record.ratio)
    if record.aliases:
        yield "also named", visible(", ".join(record.aliases))


def figure_or_note(title: str, draw: Callable[[], PageFigure | None]) -> tuple[PageFigure, ...]:
    """Return the figure that ``draw`` makes, a note where that fails, nothing where there is none.

    One figure must not cost the page, whatever the reason.
    """
    try:
        figure = draw()
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        why = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return (PageFigure(visible(title), failed=visible(why)),)
    return (figure,) if figure else ()
