"""One or two captures as a page: the summaries, figures, the tree with its panels, the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hookscope.escapes import visible
from hookscope.files.words import count_text, full_text, percent_text, plural, shape_text
from hookscope.results.health import gradient_marks
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record, Recording
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.capture import edit_note
from hookscope.views.html.page import Page, PageFigure, PageRow, Summary
from hookscope.views.html.page_header import file_summary, gradient_records
from hookscope.views.html.page_images import (
    TILE_COLUMNS,
    TILE_GAP,
    drawn_part,
    input_figure,
    map_figure,
)
from hookscope.views.html.page_table import (
    missing_page_rows,
    page_columns,
    page_row,
    tensor_difference,
)
from hookscope.views.html.page_tree import (
    PageNode,
    PanelEntry,
    TensorNote,
    TensorPanel,
    missing_entries,
    module_types,
    page_nodes,
    tree_items,
)
from hookscope.views.html.svg import BINS, flow_figures, histogram_figure
from hookscope.views.images.tensor_view import histogram
from hookscope.views.text.shared_parts import nonfinite_note
from hookscope.views.text.table import Column

MAX_PAGE_BYTES = 20_000_000
MAX_IMAGE_BYTES = 12_000_000  # of the page, for all images
TEXT_BYTES = 4_000  # of the page, for the numbers and the histogram of one tensor, about
PNG_OVERHEAD = 1300  # bytes of a PNG beside its pixels: 258 colours, their opacity, the headers
REPEATED_ROW = 16  # bytes of a row of pixels that repeats the row above it, compressed, at most

LETTERS = ("A", "B")


@dataclass(frozen=True)
class PageLimits:
    """How many maps of a tensor and how many tensors a page shows."""

    maps: int
    side: int
    rows: int = 3000


LIMIT_STEPS = tuple(
    PageLimits(*step) for step in ((16, 56), (16, 40), (9, 32), (4, 32), (4, 16), (1, 16))
)


@dataclass(frozen=True)
class CapturePage(Page):
    """The page of one capture, or of two side by side; ``chosen`` says what was left out."""

    template = "capture_page.html"
    scripts = ("glob.js", "filter.js", "table.js", "tree.js", "graph.js", "page.js")

    sides: tuple[Summary, ...]
    chosen: tuple[str, ...]
    flow: tuple[PageFigure, ...]
    tree: tuple[PageNode, ...]
    columns: tuple[Column, ...]
    rows: tuple[PageRow, ...]


def descending_limits(captures: Iterable[Recording]) -> Iterator[PageLimits]:
    """Yield limits for a page, each smaller than the one before."""
    records = [(record, capture.image) for capture in captures for record in capture.records]
    shown = records[: LIMIT_STEPS[0].rows]
    room = min(MAX_IMAGE_BYTES, MAX_PAGE_BYTES - TEXT_BYTES * len(shown))
    for limits in LIMIT_STEPS:
        if sum(max_image_bytes(record, limits, image) for record, image in shown) <= room:
            yield limits
    last = PageLimits(0, 0)
    while last.rows:
        yield last
        last = replace(last, rows=last.rows // 2)


def max_image_bytes(
    record: Record, limits: PageLimits, image: tuple[int, int] | None = None
) -> int:
    """Return an upper bound of the bytes of one tensor's maps, as a ``data:`` URI.

    An image has one byte for each pixel before compression. Deflate adds at most five bytes to
    16 kB, and base64 writes three bytes as four.
    """
    part = drawn_part(record, limits.maps, image)
    height, width = part.drawn(limits.side)
    tiles = -(-part.maps // TILE_COLUMNS) * TILE_COLUMNS if part.maps > 1 else part.maps
    if not tiles:
        return 0
    pixels = tiles * (height + TILE_GAP) * (width + TILE_GAP + 1)  # one more byte for each row
    repeated = tiles * height * (part.row_repeats(limits.side) - 1) * REPEATED_ROW
    return (pixels + pixels // 1000 + repeated + PNG_OVERHEAD) * 4 // 3 + 40


def build_page(captures: Sequence[CaptureFile], limits: PageLimits) -> CapturePage:
    """Return the page of one capture, or of two side by side."""
    letters = LETTERS if len(captures) > 1 else ("",)
    keys = list(dict.fromkeys(r.key for capture in captures for r in capture.records))
    shown = keys[: limits.rows]
    types = module_types(captures)
    items = dict(tree_items(types))
    node_indexes = {name: n for n, name in enumerate(items)}
    notes = [_tensor_notes(capture) for capture in captures]
    records_by_key = [{r.key: r for r in capture.records} for capture in captures]
    entries: dict[str, list[PanelEntry]] = {}
    rows = []
    columns = page_columns(captures)
    for n, key in enumerate(shown, start=1):
        pair = [records.get(key) for records in records_by_key]
        first = next(record for record in pair if record)
        pair_notes = [notes_by_key.get(key, TensorNote()).text for notes_by_key in notes]
        node = node_indexes[first.module]
        comparable = len(pair) > 1 and None not in pair
        difference = tensor_difference(captures, key) if comparable else None
        rows.append(page_row(columns, n, node, pair, pair_notes, difference))
        sides = zip(letters, captures, pair, pair_notes, strict=True)
        panels = [
            tensor_panel(letter, capture, record, note, limits)
            for letter, capture, record, note in sides
            if record
        ]
        entries.setdefault(first.module, []).append(PanelEntry(visible(key), tuple(panels)))
    missing = tuple(missing_entries(captures, letters))
    rows += missing_page_rows(columns, missing, node_indexes)
    return CapturePage(
        _title(captures),
        tuple(
            file_summary(capture, letter, figure_or_note("Input", partial(input_figure, capture)))
            for letter, capture in zip(letters, captures, strict=True)
        ),
        tuple(_selection_notes(captures, limits, len(keys))),
        flow_figures(captures, letters, shown, node_indexes),
        tuple(page_nodes(captures, items, types, entries, notes, missing)),
        columns,
        tuple(rows),
    )


def _title(captures: Sequence[CaptureFile]) -> str:
    models = [str(c.metadata.get("model", {}).get("spec", "a model")) for c in captures]
    return visible(" and ".join(dict.fromkeys(models)))


def _tensor_notes(capture: CaptureFile) -> dict[str, TensorNote]:
    """Warnings by key: non-finite entries, vanishing or exploding gradients, edits."""
    gradients = gradient_marks(gradient_records(capture.records))
    notes = {}
    for r in capture.records:
        gradient, edit = gradients.get(r.key, ""), edit_note(r, capture.metadata)
        marks = ("NaN!" * bool(r.stats.nan), "Inf!" * bool(r.stats.inf), gradient)
        if text := ", ".join(filter(None, (nonfinite_note(r.stats), gradient, edit))):
            words = (*marks, "edited" * bool(edit))
            notes[r.key] = TensorNote(visible(text), tuple(filter(None, words)))
    return notes


def _selection_notes(
    captures: Sequence[CaptureFile], limits: PageLimits, total: int
) -> Iterable[str]:
    """What the page shows of the files and what it leaves out."""
    if total > limits.rows:
        yield (
            f"The first {plural(limits.rows, 'tensor')} of {count_text(total)} are shown;"
            f" {count_text(total - limits.rows)} are left out, to keep the page small."
        )
    if not limits.maps:
        yield "Feature maps are left out, to keep the page small."
        return
    parts = [
        drawn_part(record, limits.maps, capture.image)
        for capture in captures
        for record in capture.records
    ][: limits.rows]
    if any(part.maps > 1 for part in parts):
        yield (
            f"Up to {limits.maps} feature maps of each tensor are drawn, from the first sample, at"
            f" most {limits.side} pixels wide and high."
        )
    if any(part.maps == 1 for part in parts):
        yield "A tensor without feature maps is drawn as one map of rows and columns."
    if any(part.drawn(limits.side) != part.map_shape for part in parts if part.maps):
        yield "A larger map is averaged down to that size."


def tensor_panel(
    letter: str, capture: CaptureFile, record: Record, note: str, limits: PageLimits
) -> TensorPanel:
    """Return the panel of a tensor in one file, with as many figures as ``limits`` allow."""
    title = visible(record.key)
    figures = figure_or_note(f"Histogram of {title}", lambda: _histogram_figure(capture, record))
    if limits.maps:
        figures += figure_or_note(
            f"Maps of {title}", lambda: map_figure(capture, record, limits.maps, limits.side)
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
    share = percent_text(stats.zero_share)
    yield "zeros", f"{count_text(stats.zeros)} of {count_text(stats.numel)} ({share})"
    if stats.nan or stats.inf:
        yield "NaN, Inf", f"{count_text(stats.nan)}, {count_text(stats.inf)}"
    if record.weight_norm is not None:
        yield "weight norm", full_text(record.weight_norm)
        yield "grad/weight", full_text(record.ratio)
    if record.aliases:
        yield "also named", visible(", ".join(record.aliases))


def figure_or_note(title: str, draw: Callable[[], PageFigure | None]) -> tuple[PageFigure, ...]:
    """Return the figure, if any, or why it fails: no figure may prevent the page."""
    try:
        figure = draw()
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        why = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return (PageFigure(visible(title), failed=visible(why)),)
    return (figure,) if figure else ()
