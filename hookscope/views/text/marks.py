"""The words for what stands out: what vanishing and exploding mean, and what is not a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookscope.results.gradient_flow import EXPLODING, SPREAD, USUAL, VANISHING
from hookscope.specs.record_kinds import PARAM_GRAD
from hookscope.views.text.text import count

if TYPE_CHECKING:
    from hookscope.results.stats import Stats

LEGEND = (
    f"{VANISHING}: the norm is under {USUAL.floor:g}, or under 1/{1 / USUAL.vanishing:,.0f} "
    f"(parameters: 1/{SPREAD[PARAM_GRAD] / USUAL.vanishing:,.0f}) of the first of its kind, nearest"
    f" to the loss; {EXPLODING}: as many times larger, or an entry over {USUAL.ceiling:,.0f}."
)


def not_finite(stats: Stats) -> str:
    """Return the loud words for NaN and infinite entries, empty where there are none.

    Example:
        >>> from hookscope.results.stats import Stats
        >>> not_finite(Stats(4, 0.0, 0.0, 0.0, 0.0, 0.0, 2, nan=1, inf=1))
        'NaN! 1 of 4, Inf! 1 of 4'
    """
    found = (("NaN!", stats.nan), ("Inf!", stats.inf))
    return ", ".join(f"{word} {count(n)} of {count(stats.numel)}" for word, n in found if n)
