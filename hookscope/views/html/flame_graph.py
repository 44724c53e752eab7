"""A flame graph as SVG: each call is a bar below the one that made it, as wide as it took long.

All positions are shares of the width, so that the letters have the same size on any page. A bar is
an ``svg`` element of its own, which cuts off a name that is too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.files.words import number_text, percent_text
from hookscope.results.trace_events import TraceEvent
from hookscope.specs.patterns import layer_text

HEIGHT = 20  # of a bar, in pixels
NAMED = 0.012  # the share of the width from which a bar has a name


def flame_graph(direction: str, events: Sequence[TraceEvent]) -> Markup:
    """Return the drawing of the calls of one direction of a run."""
    start = min(event.start for event in events)
    whole = max(event.start + event.time for event in events) - start or 1.0
    rows = 1 + max(event.depth for event in events)
    bars = Markup().join(_bar(event, start, whole) for event in events)
    return Markup(
        '<svg class="{}" height="{}" role="img" aria-label="Flame graph of the {} pass">{}</svg>'
    ).format(direction, rows * HEIGHT, direction, bars)


def _bar(event: TraceEvent, start: float, whole: float) -> Markup:
    name, share = visible(layer_text(event.module)), event.time / whole
    label = Markup('<text x="4" y="14">{}</text>').format(name) if share >= NAMED else ""
    about = f"{name} ({visible(event.type)})"
    about += f", call {event.call}" * (event.call > 1)
    about += f": {number_text(event.time)} ms ({percent_text(share)})"
    return Markup(
        '<svg x="{:.3f}%" y="{}" width="{:.3f}%" height="{}">'
        '<rect width="100%" height="100%"/>{}<title>{}, own {} ms</title></svg>'
    ).format(
        100 * (event.start - start) / whole,
        event.depth * HEIGHT,
        100 * share,
        HEIGHT,
        label,
        about,
        number_text(event.own),
    )
