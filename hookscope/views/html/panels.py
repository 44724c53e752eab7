"""What the panel of a layer shows of one tensor: facts, a histogram, maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hookscope.results.numpy_stats import magnitude
from hookscope.results.reader import OpenCapture
from hookscope.results.records import Record
from hookscope.views.html.choice import Choice
from hookscope.views.html.drawing import BINS, histogram_figure
from hookscope.views.html.maps import sheet
from hookscope.views.html.model import Figure, Look
from hookscope.views.images.values import histogram
from hookscope.views.text.text import count, full, per_cent, shape_text, visible


def look_at(letter: str, capture: OpenCapture, record: Record, note: str, choice: Choice) -> Look:
    """Return what one file holds of a tensor, with as many figures as ``choice`` lets there be."""
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
