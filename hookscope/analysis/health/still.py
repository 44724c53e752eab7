"""From parameters and buffers that stand still to findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hookscope.analysis.health.naming import alike, outermost, owner_of
from hookscope.analysis.health.standing import Held, Standing
from hookscope.results.health import Finding
from hookscope.specs.health_checks import (
    BATCHNORM,
    DEVICES,
    DTYPES,
    DUPLICATED,
    ERROR,
    INF,
    NAN,
    NOTE,
    TIED,
    WARNING,
)


def judge_still(standing: Standing, *, weights_from_file: bool) -> Iterator[Finding]:
    """All that is found of a model that stands still."""
    yield from _not_finite(standing.held)
    yield from _running_statistics(standing, weights_from_file=weights_from_file)
    yield from _same(standing)
    floating = [held for held in standing.held if held.floating]
    yield from _mixed(DTYPES, [(held.name, held.dtype) for held in floating if held.parameter])
    level = NOTE if standing.dispatched else WARNING
    yield from _mixed(DEVICES, standing.placed, level)


def _not_finite(held: Sequence[Held]) -> Iterator[Finding]:
    for one in held:
        for check, count, kind in ((NAN, one.nan, "NaN"), (INF, one.inf, "infinite")):
            if count:
                entries = "entry" if count == 1 else "entries"
                what = "parameter" if one.parameter else "buffer"
                told = f"its {what} {one.name.rpartition('.')[2]} has {count:,} {kind} {entries}"
                hint = "Load weights that are sound; training that diverged leaves such ones."
                yield Finding(check, ERROR, owner_of(one.name), told, count, 0, hint)


def _running_statistics(standing: Standing, *, weights_from_file: bool) -> Iterator[Finding]:
    fresh = standing.never_updated
    if not fresh:
        return
    told = "its running mean is 0 and its variance 1: they were never updated"
    hint = "Run the model in train mode over data, or load weights that hold the buffers too."
    level = WARNING if weights_from_file or standing.updated else NOTE
    yield Finding(BATCHNORM, level, fresh[0], told, len(fresh), 0, hint, fresh[1:])


def _same(standing: Standing) -> Iterator[Finding]:
    """Tied parameters, and those that are copies."""
    for names, count in alike(standing.tied).items():
        told = f"{_so_many(count)} also {_also(names)}: one tensor"
        yield Finding(TIED, NOTE, names[0], told, len(names) - 1, None, others=names[1:])
    pairs = alike(standing.duplicated)
    for names in pairs:
        if names[0] in outermost(other[0] for other in pairs):
            told = f"{_so_many(pairs[names])} equal to {_also(names)} in every bit"
            hint = "As after copy.deepcopy: initialise each anew, or share one parameter if meant."
            yield Finding(DUPLICATED, WARNING, names[0], told, pairs[names], 0, hint, names[1:])


def _so_many(count: int) -> str:
    return "its parameter is" if count == 1 else f"{count:,} of its parameters are"


def _also(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 4 else ""
    return f"{', '.join(names[1 : 4 if more else None])}{more}"


def _mixed(check: str, held: Sequence[tuple[str, str]], level: str = WARNING) -> Iterator[Finding]:
    """One finding for each kind but the commonest, at the first that is of it."""
    counts = Counter(kind for _, kind in held)
    common = counts.most_common(1)[0][0] if counts else ""
    for kind in counts:
        if kind != common:
            layers = tuple(dict.fromkeys(owner_of(name) for name, k in held if k == kind))
            what = "parameters" if check == DTYPES else "parameters and buffers"
            told = (
                f"it is {'of' if check == DTYPES else 'on'} {kind}, where {counts[common]:,} of"
                f" {len(held):,} {what} are {common}"
            )
            hint = (
                f"Bring the whole model to one with .to(), unless it is meant so (--skip {check})."
            )
            yield Finding(check, level, layers[0], told, len(counts), 1, hint, layers[1:])
