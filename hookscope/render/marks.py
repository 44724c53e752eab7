"""Which gradients stand out: vanishing, exploding, not a number.

A gradient is compared with the one of its own kind that arrived first, which is the nearest to the
loss: the scale of all gradients depends on the loss, so no fixed number could tell, and in a net
whose gradients have vanished even the median layer has none left to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookscope.kinds import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD
from hookscope.render.text import count

if TYPE_CHECKING:
    from hookscope.records import Record
    from hookscope.stats import Stats

VANISHING, EXPLODING = "vanishing", "exploding"

# How many times smaller or larger than the first of its kind a norm must be. Measured on randomly
# initialised networks of sound design (VGG, ResNet, DenseNet, RegNet, Swin): at outputs the norms
# stay within 1/6,000 of the first, at parameters, whose gradients also scale with the activations
# and with their own size, within 1/100,000.
FACTORS = {OUTPUT_GRAD: 1e4, INPUT_GRAD: 1e4, PARAM_GRAD: 1e6}
# Adam's default epsilon: below it, not even a step that divides by the gradient's size follows it.
FLOOR = 1e-8
# The largest float16: one entry past it is infinite in half precision.
CEILING = 65504.0

LEGEND = (
    f"{VANISHING}: the norm is under {FLOOR:g}, or under 1/{FACTORS[OUTPUT_GRAD]:,.0f} "
    f"(parameters: 1/{FACTORS[PARAM_GRAD]:,.0f}) of the first of its kind, nearest to the loss; "
    f"{EXPLODING}: as many times larger, or an entry over {CEILING:,.0f}."
)


def gradient_marks(records: Sequence[Record]) -> dict[str, str]:
    """Return the word for each record (by key) whose gradient stands out.

    Args:
        records: gradients in the order of their arrival, the nearest to the loss first. Those
            without a single finite entry get no word: there is no norm to judge.
    """
    first: dict[str, float] = {}
    for record in records:
        if record.stats.norm:
            first.setdefault(record.kind, record.stats.norm)
    words = {r.key: _judge(r.stats, first.get(r.kind, 0.0), r.kind) for r in records}
    return {key: word for key, word in words.items() if word}


def _judge(stats: Stats, first: float, kind: str) -> str:
    if stats.absmax is None or stats.norm is None or kind not in FACTORS:
        return ""
    if stats.norm < max(FLOOR, first / FACTORS[kind]):
        return VANISHING
    if stats.absmax > CEILING or 0 < first * FACTORS[kind] < stats.norm:
        return EXPLODING
    return ""


def not_finite(stats: Stats) -> str:
    """Return the loud words for NaN and infinite entries, empty where there are none.

    Example:
        >>> from hookscope.stats import Stats
        >>> not_finite(Stats(4, 0.0, 0.0, 0.0, 0.0, 0.0, 2, nan=1, inf=1))
        'NaN! 1 of 4, Inf! 1 of 4'
    """
    found = (("NaN!", stats.nan), ("Inf!", stats.inf))
    return ", ".join(f"{word} {count(n)} of {count(stats.numel)}" for word, n in found if n)
