"""Which gradients stand out: vanishing and exploding ones. One rule for every verb.

A gradient is compared with the one of its own kind that arrived first, which is the nearest to the
loss: the scale of all gradients depends on the loss, so no fixed number could tell, and in a net
whose gradients have vanished even the median layer has none left to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.specs.record_kinds import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD

VANISHING, EXPLODING = "vanishing", "exploding"

# Measured on randomly initialised networks of sound design (VGG, ResNet, DenseNet, RegNet, Swin):
# at outputs the norms stay within 1/6,000 of the first, at parameters, whose gradients also scale
# with the activations and with their own size, within 1/100,000.
SPREAD = {OUTPUT_GRAD: 1.0, INPUT_GRAD: 1.0, PARAM_GRAD: 100.0}


@dataclass(frozen=True)
class GradientLimits:
    """From where on a gradient stands out.

    Attributes:
        vanishing: its norm over the first of its kind; for parameters 1/100 of this.
        exploding: the same upwards; for parameters 100 times this.
        floor: its norm, whatever the first was. Adam's default epsilon: below it, not even a step
            that divides by the gradient's size follows it.
        ceiling: its largest entry. The largest float16: past it lies infinity in half precision.
    """

    vanishing: float = 1e-4
    exploding: float = 1e4
    floor: float = 1e-8
    ceiling: float = 65504.0


DEFAULT_LIMITS = GradientLimits()


def gradient_marks(
    records: Sequence[Record], limits: GradientLimits = DEFAULT_LIMITS
) -> dict[str, str]:
    """Return the word for each record (by key) whose gradient stands out.

    Args:
        records: gradients in the order of their arrival, the nearest to the loss first. Those
            without a single finite entry get no word: there is no norm to judge.
        limits: from where on.
    """
    first = first_norms(records)
    words = {r.key: _judge(r.stats, first.get(r.kind, 0.0), r.kind, limits) for r in records}
    return {key: word for key, word in words.items() if word}


def first_norms(records: Sequence[Record]) -> dict[str, float]:
    """Return for each kind the norm that the others are compared with."""
    first: dict[str, float] = {}
    for record in records:
        if record.stats.norm:
            first.setdefault(record.kind, record.stats.norm)
    return first


def _judge(stats: Stats, first: float, kind: str, limits: GradientLimits) -> str:
    if stats.absmax is None or stats.norm is None or kind not in SPREAD:
        return ""
    if stats.norm < max(limits.floor, first * limits.vanishing / SPREAD[kind]):
        return VANISHING
    if stats.absmax > limits.ceiling or 0 < first * limits.exploding * SPREAD[kind] < stats.norm:
        return EXPLODING
    return ""
