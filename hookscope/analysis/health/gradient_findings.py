"""From gradients to findings: those that are no numbers, and those that vanish or explode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hookscope.analysis.health.module_names import owner_of
from hookscope.analysis.health.run_findings import CheckContext
from hookscope.results.gradient_flow import SPREAD, GradientLimits, first_norms, gradient_marks
from hookscope.results.health import Finding
from hookscope.results.module_tree import ROOT
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.specs.health_checks import (
    ERROR,
    EXPLODING,
    INF,
    NAN,
    NOTE,
    VANISHING,
    WARNING,
    Thresholds,
)
from hookscope.specs.record_kinds import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD


def gradient_findings(facts: CheckContext) -> Iterator[Finding]:
    """Gradients that are no numbers, vanish or explode."""
    seen, given = facts.seen, facts.thresholds
    if not_finite(seen.gradients):
        wanted = facts.not_finite
        broken = [r for r in facts.traced or seen.gradients if _wrong(r.stats, wanted)]
        if broken and not facts.births() and not facts.broken_parameters():
            yield _gradient_birth(broken[0], wanted)
        infinite = next((r for r in seen.gradients if r.stats.inf), None)
        if infinite and INF not in facts.checks:
            yield _infinite(infinite, given)
        return
    limits = GradientLimits(given.vanishing, given.exploding, given.floor, given.ceiling)
    marks = gradient_marks(seen.gradients, limits)
    first = first_norms(seen.gradients)
    whole = _largest_by_owner(r for r in seen.gradients if r.kind == PARAM_GRAD)
    for check in (VANISHING, EXPLODING):
        found = [r for r in seen.gradients if marks.get(r.key) == check and r.kind != INPUT_GRAD]
        if check == VANISHING:  # a bias before a normalisation has none by its nature
            found = [r for r in found if r.kind != PARAM_GRAD or r.key == whole[r.module].key]
        if found:
            told = _stands_out(check, found, first, given)
            excuse = _excuse(check, found[0], first, facts)
            yield replace(told, level=NOTE, hint=excuse) if excuse else told


def _excuse(check: str, nearest: Record, first: dict[str, float], facts: CheckContext) -> str:
    """Why gradients that stand out are no fault of the model's; empty if they are."""
    standing, gradients = facts.standing, facts.seen.gradients
    if check == VANISHING:
        outputs = [record for record in gradients if record.kind == OUTPUT_GRAD]
        ends = [record for record in gradients if record.kind == INPUT_GRAD] or outputs[-1:]
        reached = max((record.stats.norm or 0.0 for record in ends), default=0.0)
        if reached >= first.get(OUTPUT_GRAD, 0.0) * facts.thresholds.vanishing:
            return "It is a branch alone: past it the gradient comes back whole."
        nearer = {record.module for record in gradients[: gradients.index(nearest)]} - {ROOT}
        blanks = (held.name for held in standing.held if held.blank)
        blank = next((name for name in blanks if owner_of(name) in nearer), "")
        if nearest.stats.norm == 0 and blank:
            return f"{blank} is zero throughout, as some are built: nothing comes back yet."
    # A network counts on its normalisation, which eval mode takes from these statistics.
    if standing.never_updated and not standing.updated and not facts.training:
        return "Batch normalisation does not normalise yet (see batchnorm): try --train."
    return ""


def _largest_by_owner(records: Iterable[Record]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for record in records:
        best = found.get(record.module)
        if best is None or (record.stats.norm or 0) > (best.stats.norm or 0):
            found[record.module] = record
    return found


def _stands_out(
    check: str, found: Sequence[Record], first: dict[str, float], given: Thresholds
) -> Finding:
    """One finding for all gradients that vanish, or explode: at the one nearest to the loss."""
    nearest = found[0]
    norm = nearest.stats.norm or 0.0
    ratio = norm / first[nearest.kind] if first.get(nearest.kind) else 0.0
    spread = SPREAD[nearest.kind]
    far = given.vanishing / spread if check == VANISHING else given.exploding * spread
    others = tuple(dict.fromkeys(r.module for r in found if r.module != nearest.module))
    verb = "vanishes" if check == VANISHING else "explodes"
    begun = f"its gradient {verb}: the norm of {nearest.what} is {norm:.3g}"
    told = f"{begun}, {ratio:.3g} times that nearest to the loss"
    measured, threshold = ratio, far
    absmax = nearest.stats.absmax or 0.0
    if check == EXPLODING and ratio <= far:
        told = f"its gradient explodes: the largest entry of {nearest.what} is {absmax:.3g}"
        measured, threshold = float(absmax), given.ceiling
    elif check == VANISHING and ratio >= far:
        told = begun
        measured, threshold = norm, given.floor
    hint = (
        "Layers before it learn next to nothing: use ReLUs, normalisation or skip connections."
        if check == VANISHING
        else "Clip gradients, normalise, or start from smaller weights."
    )
    return Finding(check, WARNING, nearest.module, told, measured, threshold, hint, others)


def _infinite(record: Record, given: Thresholds) -> Finding:
    """An infinite gradient, for those who do not look for infinities as such."""
    share = f"{record.stats.inf:,} of {record.stats.numel:,} entries of {record.what}"
    told = f"its gradient explodes: {share} are infinite"
    hint = "Run the check inf too: it tells where they arise."
    return Finding(EXPLODING, WARNING, record.module, told, math.inf, given.ceiling, hint)


def _gradient_birth(first: Record, wanted: frozenset[str]) -> Finding:
    """Where the first gradient that is no number arose: the call that handed it on."""
    stats = first.stats
    nan = NAN in wanted and stats.nan
    check, count = (NAN, stats.nan) if nan else (INF, stats.inf)
    kind = "NaN" if nan else "infinite"
    layer, what = first.module, "this module"
    if first.kind == OUTPUT_GRAD:  # made between this module and what is called next
        layer = ROOT if first.module == ROOT else owner_of(first.module)
        what = "the loss" if first.module == ROOT else f"what is done with {first.module}'s output"
    told = f"going back, {what} makes a gradient that is no finite number"
    share = f"{first.module}/{first.what} has {count:,} of {stats.numel:,} entries {kind}"
    hint = "Roots and norms have no derivative at 0, nor a log: add a small number inside."
    return Finding(check, ERROR, layer, f"{told}: {share}", count, 0, hint)


def not_finite(gradients: Iterable[Record]) -> bool:
    """Whether an entry of one of them is NaN or infinite, so that their sizes are not judged."""
    return any(_wrong(record.stats, frozenset((NAN, INF))) for record in gradients)


def _wrong(stats: Stats, wanted: frozenset[str]) -> bool:
    return bool((NAN in wanted and stats.nan) or (INF in wanted and stats.inf))
