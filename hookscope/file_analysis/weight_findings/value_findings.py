"""Findings on single entries: NaN, infinities, and what float16 cannot hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookscope.file_analysis.weights.tensor_measures import TensorMeasures
from hookscope.files.shell_words import join_words
from hookscope.results.health import Finding
from hookscope.specs.health_checks import ERROR, INF, NAN, NOTE, UNREAD, WARNING
from hookscope.specs.weight_checks import (
    DEFAULT_WEIGHT_THRESHOLDS,
    OVERFLOW,
    UNDERFLOW,
)

LIMITS = DEFAULT_WEIGHT_THRESHOLDS


def nan_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield each tensor with NaN."""
    for one in measures:
        if one.stats is not None and one.stats.nan:
            yield _count_finding(NAN, one, one.stats.nan, one.stats.numel, "NaN")


def inf_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield each tensor with infinite entries."""
    for one in measures:
        if one.stats is not None and one.stats.inf:
            yield _count_finding(INF, one, one.stats.inf, one.stats.numel, "infinite")


def _count_finding(check: str, one: TensorMeasures, count: int, numel: int, what: str) -> Finding:
    text = f"{count:,} of its {numel:,} entries are {what}"
    show = join_words(["hookscope", "show", one.source, one.name])
    hint = f"To print the index of the first one: {show}"
    return Finding(check, ERROR, one.name, text, count, 0, hint)


def overflow_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the tensors with an entry that would be infinite in float16, the largest first."""
    sizes = {
        one.name: float(one.stats.absmax)
        for one in measures
        if one.floats and one.stats is not None and one.stats.absmax is not None
    }
    return Finding.of_largest(
        OVERFLOW,
        WARNING,
        {name: size for name, size in sizes.items() if size > LIMITS.float16_max},
        LIMITS.float16_max,
        lambda name: f"its largest magnitude is {sizes[name]:.4g}, which is infinite in float16",
        "Keep it in its dtype, or convert to bfloat16, which has the range of float32.",
    )


def underflow_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the tensors of which float16 would lose a share of the entries, the largest first."""
    shares = {}
    for one in measures:
        if one.stats is not None and one.small:
            shares[one.name] = one.small / (one.stats.numel - one.stats.zeros)
    return Finding.of_largest(
        UNDERFLOW,
        NOTE,
        {name: share for name, share in shares.items() if share > LIMITS.underflow},
        LIMITS.underflow,
        lambda name: (
            f"{shares[name]:.2%} of its non-zero entries are below 2^-24, the least number of"
            " float16"
        ),
        "In float16 they become zero, or 2^-24.",
    )


def unread_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the tensors without values, or whose values cannot be read, for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in measures:
        if reason := one.unread or ("" if one.tensor.numel else "it has no entries"):
            reasons.setdefault(reason, []).append(one.name)
    for reason, names in reasons.items():
        yield Finding(
            UNREAD,
            NOTE,
            names[0],
            f"it was not checked: {reason.rstrip('.')}",
            len(names),
            others=tuple(names[1:]),
        )
