"""Findings on single entries: NaN, infinities, and what float16 cannot hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hookscope.file_analysis.weights.tensor_measures import TensorMeasures
from hookscope.files.shell_words import join_words
from hookscope.results.health import Finding
from hookscope.results.stats import Stats
from hookscope.specs.health_checks import BATCHNORM, ERROR, INF, NAN, NOTE, UNREAD, WARNING
from hookscope.specs.weight_checks import (
    ADAPTER,
    DEFAULT_WEIGHT_THRESHOLDS,
    OVERFLOW,
    UNDERFLOW,
    VARIANCE,
)

LIMITS = DEFAULT_WEIGHT_THRESHOLDS


# The factor of an adapter that starts with zeros, so that the adapter changes nothing at first:
# of LoRA in peft and in diffusers, and of LoHa (Hu et al. 2021; Hyeon-Woo et al. 2022).
_ZERO_FACTOR = re.compile(r"(.*\.)?(lora_(embedding_)?B|lora_up|lora\.up|hada_w2_a)(\..*)?")
# Scales of IA3 (Liu et al. 2022), which start with ones.
_ONE_FACTOR = re.compile(r"(.*\.)?ia3_l(\..*)?")
_MEAN, _VARIANCE = "running_mean", "running_var"


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


def adapter_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the adapters that still have their start values: they change nothing in the model."""
    factors = [one for one in measures if adapter_start(one.name) is not None]
    names = [one.name for one in factors if _is_filled(one.stats, adapter_start(one.name))]
    if names:
        every = "every adapter" if len(names) == len(factors) else "this adapter"
        value = adapter_start(names[0])
        yield Finding(
            ADAPTER,
            WARNING,
            names[0],
            f"all its entries are {value:g}, its start value, so {every} changes nothing",
            len(names),
            hint="Check that the adapters were trained, and that the right weights were saved.",
            others=tuple(names[1:]),
        )


def variance_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield running variances of batch normalizations that are zero or negative."""
    for one in measures:
        stats = one.stats
        if not _is_called(one.name, _VARIANCE) or stats is None or stats.min is None:
            continue
        if stats.min < 0:
            yield Finding(
                VARIANCE,
                ERROR,
                one.name,
                f"its smallest entry is {stats.min:.4g}, and a variance cannot be negative",
                1,
                hint="The normalization gives NaN there. Look for an average of checkpoints with"
                " wrong weights, or a damaged file.",
            )
        elif stats.zeros:
            yield Finding(
                VARIANCE,
                WARNING,
                one.name,
                f"{stats.zeros:,} of its {stats.numel:,} entries are zero",
                stats.zeros,
                hint="The input of these channels is constant: a layer before it is dead.",
            )


def batchnorm_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield batch normalizations that were never updated: a note if all of them are so."""
    by_name = {one.name: one for one in measures}
    layers = [
        one.name.removesuffix(_MEAN)
        for one in measures
        if _is_called(one.name, _MEAN) and one.name.removesuffix(_MEAN) + _VARIANCE in by_name
    ]
    untrained = [
        name
        for name in layers
        if _is_filled(by_name[name + _MEAN].stats, 0)
        and _is_filled(by_name[name + _VARIANCE].stats, 1)
    ]
    if untrained:
        every = len(untrained) == len(layers)
        yield Finding(
            BATCHNORM,
            NOTE if every else WARNING,
            untrained[0].rstrip(".") or ".",
            "the running mean is 0 and the running variance is 1, as they start"
            + ("" if every else f"; {len(layers) - len(untrained)} of {len(layers)} were updated"),
            len(untrained),
            hint="The model was not trained, or only in eval mode.",
            others=tuple(name.rstrip(".") or "." for name in untrained[1:]),
        )


def adapter_start(name: str) -> float | None:
    """Return the value that all entries of a factor of an adapter start with; None of others.

    Example:
        >>> adapter_start("q_proj.lora_B.default.weight"), adapter_start("q_proj.weight")
        (0.0, None)
    """
    if _ZERO_FACTOR.fullmatch(name):
        return 0.0
    return 1.0 if _ONE_FACTOR.fullmatch(name) else None


def _is_filled(stats: Stats | None, value: float | None) -> bool:
    """Whether all entries are equal to ``value``."""
    if stats is None or not stats.numel or stats.nan or stats.inf:
        return False
    return stats.min == value == stats.max


def _is_called(name: str, last: str) -> bool:
    return name.rpartition(".")[2] == last
