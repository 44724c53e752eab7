"""Detection of vanishing and exploding gradients, with one rule for all commands.

A gradient is compared with the first gradient of its kind, which is the nearest to the loss. A
fixed number would not do, because the scale of all gradients depends on the loss. Nor would the
median, because in a network whose gradients vanish most layers have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.specs.tensor_key import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD

VANISHING, EXPLODING = "vanishing", "exploding"

# Measured on randomly initialized networks without such faults (VGG, ResNet, DenseNet, RegNet,
# Swin): norms at outputs stay above 1/6,000 of the first one, norms at parameters, which also scale
# with the activations and with the size of the parameter, above 1/100,000.
SPREAD = {OUTPUT_GRAD: 1.0, INPUT_GRAD: 1.0, PARAM_GRAD: 100.0}


@dataclass(frozen=True)
class GradientLimits:
    """The limits beyond which a gradient vanishes or explodes.

    Attributes:
        vanishing: smallest norm, relative to the first of its kind; for parameters 1/100 of this.
        exploding: largest norm, relative to the first of its kind; for parameters 100 times this.
        floor: smallest norm, whatever the first is. Adam's default epsilon: below it, even a step
            that divides by the size of the gradient ignores it.
        ceiling: largest entry. The largest float16: beyond it half precision overflows.
    """

    vanishing: float = 1e-4
    exploding: float = 1e4
    floor: float = 1e-8
    ceiling: float = 65504.0


DEFAULT_LIMITS = GradientLimits()


def gradient_marks(
    records: Sequence[Record], limits: GradientLimits = DEFAULT_LIMITS
) -> dict[str, str]:
    """Return ``vanishing`` or ``exploding`` by key, for each record beyond a limit."""
    first = first_norms(records)
    marks = {r.key: _mark(r.stats, first.get(r.kind, 0.0), r.kind, limits) for r in records}
    return {key: mark for key, mark in marks.items() if mark}


def first_norms(records: Sequence[Record]) -> dict[str, float]:
    """Return for each kind the first norm, with which the others are compared."""
    first: dict[str, float] = {}
    for record in records:
        if record.stats.norm:
            first.setdefault(record.kind, record.stats.norm)
    return first


def _mark(stats: Stats, first: float, kind: str, limits: GradientLimits) -> str:
    if stats.absmax is None or stats.norm is None or kind not in SPREAD:
        return ""
    if stats.norm < max(limits.floor, first * limits.vanishing / SPREAD[kind]):
        return VANISHING
    if stats.absmax > limits.ceiling or 0 < first * limits.exploding * SPREAD[kind] < stats.norm:
        return EXPLODING
    return ""
