"""Drawings of numbers as inline SVG: histograms, and how something flows through the layers.

Colours are those of the page's style sheet, by class. Names are escaped by ``Markup.format``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.files.words import count_text, number_text
from hookscope.results.records import Record
from hookscope.specs.module_names import ancestors_of
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.html.page import PageFigure
from hookscope.views.images.tensor_view import Bin

BINS = 40
WIDTH, HEIGHT = 760, 230
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 46
MARK_HEIGHT = 18  # of the name of a marked position, above the lines
MAX_TITLED_POINTS = 400  # points with a tooltip; a line with more points has none
LETTER_WIDTH = 7  # pixels of a letter of a label
MAX_MARK_LETTERS = 24  # of the name of a marked position
MAX_LABEL_DEPTH = 4  # parts of a name in a label
_SCALE_NOTE = (
    "Logarithmic scale. A hollow mark is a zero (at the bottom), or a tensor without finite values"
    " (at the top)."
)

_NORM_NOTE = "Euclidean norm of each gradient."

# The kind of record, the value that is drawn, title and explanation.
_FLOW_KINDS: tuple[tuple[str, Callable[[Record], float | None], str, str], ...] = (
    (OUTPUT, lambda r: r.stats.std, "Spread of activations", "Standard deviation of each output."),
    (OUTPUT_GRAD, lambda r: r.stats.norm, "Gradient at outputs", _NORM_NOTE),
    (PARAM_GRAD, lambda r: r.stats.norm, "Gradient at parameters", _NORM_NOTE),
)


@dataclass(frozen=True)
class Point:
    """One layer's value: its position on the line, its key, its index in the tree."""

    position: int
    key: str
    node: int
    value: float


@dataclass(frozen=True)
class FlowLine:
    """A line of a drawing, or dots if its values do not follow from each other.

    ``suffix`` follows the key of a point in its tooltip.
    """

    points: Sequence[Point]
    suffix: str = ""
    joined: bool = True


def histogram_figure(key: str, bins: Sequence[Bin], nan: int, inf: int) -> PageFigure:
    """Return a drawing of counts; the height of a bar is ``log(1 + count)``."""
    largest = max(bin.count for bin in bins)
    wide = 200 / len(bins)
    bars = "".join(
        f"M{i * wide:.4g} 60v-{58 * math.log1p(bin.count) / math.log1p(largest):.4g}h{wide:.4g}V60z"
        for i, bin in enumerate(bins)
        if bin.count
    )
    svg = Markup(
        '<svg viewBox="0 0 200 60" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="bars" d="{}"/></svg>'
    ).format(f"Histogram of {key}", bars)
    nonfinite = ((nan, "NaN"), (inf, "Inf"))
    missing = [f"{count_text(n)} {word} not drawn" for n, word in nonfinite if n]
    ends = f"{number_text(bins[0].low)} to {number_text(bins[-1].high)}"
    caption = "; ".join(
        [ends, f"highest bar {count_text(largest)}", "logarithmic heights", *missing]
    )
    return PageFigure(f"Histogram of {key}", caption, svg=svg)


def flow_figure(
    title: str,
    about: str,
    lines: Sequence[FlowLine],
    names: Sequence[str],
    mark: tuple[int, str] | None = None,
) -> PageFigure:
    """Return a drawing of values by layer in execution order, on a logarithmic scale.

    ``names`` has the part of the model at each position, and ``mark`` a position and its name.
    """
    low, high = decades(p.value for line in lines for p in line.points)
    across = (WIDTH - LEFT - RIGHT) / max(len(names) - 1, 1)
    top = TOP if mark is None else TOP + MARK_HEIGHT

    def x(position: int) -> float:
        return round(LEFT + position * across, 1)

    def y(value: float) -> float:
        if not math.isfinite(value):
            return top
        share = (math.log10(value) - low) / (high - low) if value > 0 else 0
        return round(HEIGHT - BOTTOM - share * (HEIGHT - top - BOTTOM), 1)

    parts = [*_gridlines(low, high, y), *_axis_labels(names, x)]
    parts += [] if mark is None else [_named_rule(x(mark[0]), top, mark[1])]
    for number, line in enumerate(lines):
        places = [f"{x(p.position)} {y(p.value)}" for p in line.points]
        # A stroke of no length is a dot, because its ends are round.
        path = "L".join(places) if line.joined else "h0M".join(places) + "h0"
        kind = "" if line.joined else " dots"
        parts.append(Markup('<path class="line line{}{}" d="M{}"/>').format(number, kind, path))
        for p in line.points:
            odd = "" if 0 < p.value < math.inf else " odd"
            if len(line.points) > MAX_TITLED_POINTS and not odd:
                continue
            parts.append(
                Markup(
                    '<a href="#n{}" tabindex="-1">'
                    '<circle class="dot line{}{}" cx="{}" cy="{}" r="3">'
                    "<title>{}{}: {}</title></circle></a>"
                ).format(
                    p.node,
                    number,
                    odd,
                    x(p.position),
                    y(p.value),
                    p.key,
                    line.suffix,
                    number_text(p.value),
                )
            )
    svg = Markup('<svg viewBox="0 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, title, Markup().join(parts)
    )
    return PageFigure(title, about, svg=svg)


def decades(values: Iterable[float]) -> tuple[int, int]:
    """Return the powers of ten between which a logarithmic scale has all positive finite values.

    >>> decades([0.0, 0.02, 3.0, float("inf")]), decades([0.0])
    ((-2, 1), (0, 1))
    """
    drawn = [value for value in values if 0 < value < math.inf]
    low = math.floor(math.log10(min(drawn, default=1)))
    return low, max(math.ceil(math.log10(max(drawn, default=1))), low + 1)


def _named_rule(x: float, top: int, name: str) -> Markup:
    """A line from the top to the bottom with a name, which ends at it if the line is far right."""
    short = name if len(name) <= MAX_MARK_LETTERS else f"…{name[1 - MAX_MARK_LETTERS :]}"
    return Markup(
        '<path class="found" d="M{0} {1}V{2}"/><text class="found{3}" x="{0}" y="{4}">{5}</text>'
    ).format(x, top, HEIGHT - BOTTOM, " last" * (x > WIDTH / 2), top - 8, short)


def _gridlines(low: int, high: int, y: Callable[[float], float]) -> list[Markup]:
    """Horizontal lines at powers of ten, at most seven, each with its label."""
    step = -(-(high - low) // 6)
    return [
        Markup(
            '<path class="rule" d="M{0} {1}H{2}"/><text class="end" x="{3}" y="{4}">{5}</text>'
        ).format(
            LEFT,
            y(10.0**power),
            WIDTH - RIGHT,
            LEFT - 6,
            y(10.0**power) + 4,
            "1" if power == 0 else f"1e{power}",
        )
        for power in range(low, high + 1, step)
    ]


def _axis_labels(names: Sequence[str], x: Callable[[int], float]) -> list[Markup]:
    """The name of each part of the model where it begins; long parts first, if there is room."""
    starts = [n for n, name in enumerate(names) if not n or names[n - 1] != name]
    spans = {n: end - n for n, end in zip(starts, [*starts[1:], len(names)], strict=True)}
    texts = {n: name if len(name := names[n]) <= 16 else f"…{name[-15:]}" for n in starts}
    longest = sorted(starts, key=lambda n: -spans[n])
    widths = {n: LETTER_WIDTH * (len(texts[n]) + 1) for n in longest}
    # The last label ends at its tick if it has no room to the right of it.
    final = starts[-1]
    last = final if x(final) + widths[final] - LETTER_WIDTH > WIDTH else None

    def box(n: int, scale: int) -> tuple[float, float]:
        width = float(scale * widths[n])
        return (x(n) - width if n == last else x(n)), width

    roomy = _without_overlap({n: box(n, 1) for n in longest})
    # On a phone letters are twice as large, so only some of these labels have room.
    phones = _without_overlap({n: box(n, 2) for n in roomy})
    marks = []
    for n in sorted(roomy):
        classes = ["last"] * (n == last) + ["less"] * (n not in phones)
        tick = Markup('<path class="tick" d="M{0} {1}v5"/>').format(x(n), HEIGHT - BOTTOM)
        text = Markup('<text class="{}" x="{}" y="{}">{}</text>')
        marks += [tick, text.format(" ".join(classes), x(n), HEIGHT - BOTTOM + 24, texts[n])]
    return marks


def _without_overlap(labels: Mapping[int, tuple[float, float]]) -> list[int]:
    """The labels that do not overlap earlier ones; a label is its left edge and its width."""
    kept: list[int] = []
    for n, (left, width) in labels.items():
        free = all(
            left + width <= labels[k][0] or labels[k][0] + labels[k][1] <= left for k in kept
        )
        if free and left + width - LETTER_WIDTH <= WIDTH:
            kept.append(n)
    return kept


def flow_figures(
    captures: Sequence[CaptureFile],
    letters: Sequence[str],
    shown: Sequence[str],
    nodes: Mapping[str, int],
) -> tuple[PageFigure, ...]:
    """Return a drawing for each kind of value that the files hold of two layers or more.

    Only layers without recorded layers inside them are drawn: containers repeat their values.
    """
    figures = []
    chosen = set(shown)
    for kind, value, title, about in _FLOW_KINDS:
        sides = [
            {r.key: r for r in capture.records if r.kind == kind and r.key in chosen}
            for capture in captures
        ]
        records = {key: record for side in reversed(sides) for key, record in side.items()}
        containers = ancestors_of(record.module for record in records.values())
        keys = [key for key in shown if key in records and records[key].module not in containers]
        if kind != OUTPUT:  # gradients arrive last layer first
            keys.reverse()
        if len(keys) < 2:
            continue
        drawn = []
        for letter, side in zip(letters, sides, strict=True):
            points = [
                Point(n, visible(key), nodes[side[key].module], _or_nan(value(side[key])))
                for n, key in enumerate(keys)
                if key in side
            ]
            drawn += [FlowLine(points, f" in {letter}" * bool(letter))] if points else []
        names = part_names([records[key].module for key in keys])
        both = "Solid line: A. Dashed line: B. " if len(drawn) > 1 else ""
        figures.append(flow_figure(title, f"{about} {both}{_SCALE_NOTE}", drawn, names))
    return tuple(figures)


def part_names(modules: Sequence[str]) -> list[str]:
    """Return the part of the model at each position; one with more than half of them is split."""
    paths = [name.split(".") if name != ROOT else [ROOT] for name in modules]
    names = [path[0] for path in paths]
    for depth in range(2, MAX_LABEL_DEPTH + 1):
        name, times = Counter(names).most_common(1)[0]
        if times * 2 <= len(names):
            break
        names = [
            ".".join(path[:depth]) if part == name else part
            for path, part in zip(paths, names, strict=True)
        ]
    return list(map(visible, names))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
