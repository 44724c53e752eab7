"""The series that patterns select: by the layer or by the key, ``!`` excludes."""

from __future__ import annotations

from collections.abc import Sequence

from hookscope.errors import LayerError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.patterns import compile_pattern, near_patterns, root_named, split_exclusions
from hookscope.stores.runs.series import Series


def choose_series(patterns: Sequence[str], names: Sequence[Series], path: object) -> list[Series]:
    """Return the series whose layer or key one of ``patterns`` matches, in their order.

    Example:
        >>> names = [Series("Net", key, "norm") for key in ("a.b/weight", "a.c/weight", "fc/bias")]
        >>> [series.key for series in choose_series(["a.*", "!*.c"], names, "runs/train-1")]
        ['a.b/weight']
    """
    included, excluded = split_exclusions(patterns)
    chosen = set() if included else set(names)
    for pattern in included:
        matched = _matching(pattern, names)
        if not matched:
            raise _matches_nothing(pattern, names, path)
        chosen |= matched
    for pattern in excluded:
        chosen -= _matching(pattern, names)
    if names and not chosen:
        raise LayerError(
            f"The patterns {', '.join(patterns)} leave no layer of {path}.", "Leave out one with !."
        )
    return [series for series in names if series in chosen]


def _matching(pattern: str, names: Sequence[Series]) -> set[Series]:
    test = compile_pattern(pattern)
    key = root_named(pattern)
    return {s for s in names if s.key == key or test(s.key) or (s.module and test(s.module))}


def _matches_nothing(pattern: str, names: Sequence[Series], path: object) -> LayerError:
    modules = list(dict.fromkeys(series.module for series in names if series.module))
    if near := near_patterns(pattern, modules):
        hint = f"Did you mean {near[0]}?"
    else:
        hint = did_you_mean(pattern, [*modules, *(series.key for series in names)])
    return LayerError(
        f"{pattern!r} matches nothing in {path}.",
        hint or f"{cite_command('hookscope', 'show', str(path))} lists its layers.",
    )
