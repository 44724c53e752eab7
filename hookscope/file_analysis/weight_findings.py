"""What is wrong with weights: NaN, infinities, zero channels, what float16 cannot hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.tensor_measures import ChannelMeasures, TensorMeasures, measure_weights
from hookscope.files.progress_types import NamedProgress
from hookscope.files.shell_words import join_words
from hookscope.results.health import Finding, Health
from hookscope.results.stats import Stats
from hookscope.specs import checks
from hookscope.specs.command_options import WeightCheckOptions
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.version import __version__

LIMITS = checks.DEFAULT_WEIGHT_THRESHOLDS

# The factor of an adapter that starts with zeros, so that the adapter changes nothing at first:
# of LoRA in peft and in diffusers, and of LoHa (Hu et al. 2021; Hyeon-Woo et al. 2022).
_ZERO_FACTOR = re.compile(r"(.*\.)?(lora_(embedding_)?B|lora_up|lora\.up|hada_w2_a)(\..*)?")
# Scales of IA3 (Liu et al. 2022), which start with ones.
_ONE_FACTOR = re.compile(r"(.*\.)?ia3_l(\..*)?")
_MEAN, _VARIANCE = "running_mean", "running_var"

MAX_NAMED = 8  # channels that a sentence names
# The row of a padding token is zero by design, and rows of tokens that never occur keep their start
# values.
_EMBEDDING = re.compile(r"(^|[._])(\w*emb\w*|wte|wpe|tok\w*)([._]|$)", re.IGNORECASE)


def nan_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield each tensor with NaN."""
    for one in measures:
        if one.stats is not None and one.stats.nan:
            yield _count_finding(checks.NAN, one, one.stats.nan, one.stats.numel, "NaN")


def inf_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield each tensor with infinite entries."""
    for one in measures:
        if one.stats is not None and one.stats.inf:
            yield _count_finding(checks.INF, one, one.stats.inf, one.stats.numel, "infinite")


def _count_finding(check: str, one: TensorMeasures, count: int, numel: int, what: str) -> Finding:
    text = f"{count:,} of its {numel:,} entries are {what}"
    show = join_words(["hookscope", "show", one.source, one.name])
    hint = f"To print the index of the first one: {show}"
    return Finding(check, checks.ERROR, one.name, text, count, 0, hint)


def float16_overflow_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the tensors with an entry that would be infinite in float16, the largest first."""
    sizes = {
        one.name: float(one.stats.absmax)
        for one in measures
        if one.floats and one.stats is not None and one.stats.absmax is not None
    }
    return Finding.of_largest(
        checks.FLOAT16_OVERFLOW,
        checks.WARNING,
        {name: size for name, size in sizes.items() if size > LIMITS.float16_max},
        LIMITS.float16_max,
        lambda name: f"its largest magnitude is {sizes[name]:.4g}, which is infinite in float16",
        "Keep it in its dtype, or convert to bfloat16, which has the range of float32.",
    )


def float16_underflow_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the tensors of which float16 would lose a share of the entries, the largest first."""
    shares = {}
    for one in measures:
        if one.stats is not None and one.small:
            shares[one.name] = one.small / (one.stats.numel - one.stats.zeros)
    return Finding.of_largest(
        checks.FLOAT16_UNDERFLOW,
        checks.NOTE,
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
            checks.UNREAD,
            checks.NOTE,
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
            checks.ADAPTER,
            checks.WARNING,
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
                checks.VARIANCE,
                checks.ERROR,
                one.name,
                f"its smallest entry is {stats.min:.4g}, and a variance cannot be negative",
                1,
                hint="The normalization gives NaN there. Look for an average of checkpoints with"
                " wrong weights, or a damaged file.",
            )
        elif stats.zeros:
            yield Finding(
                checks.VARIANCE,
                checks.WARNING,
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
            checks.BATCHNORM,
            checks.NOTE if every else checks.WARNING,
            untrained[0].rstrip(".") or ".",
            "the running mean is 0 and the running variance is 1, as they start"
            + ("" if every else f"; {len(layers) - len(untrained)} of {len(layers)} were updated"),
            len(untrained),
            hint="The model was not trained, or only in eval mode.",
            others=tuple(name.rstrip(".") or "." for name in untrained[1:]),
        )


def adapter_start(name: str) -> float | None:
    """Return the value that all entries of a factor of an adapter start with; None of others."""
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


def zero_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield weights with zero channels; one that is zero throughout may be meant so: a note."""
    whole = []
    for one, channels in _with_channels(measures):
        count = len(channels.zero)
        if count == channels.count:
            if adapter_start(one.name) is None:  # else it is a finding of its own
                whole.append(one)
        elif count:
            embedding = _EMBEDDING.search(one.name) is not None
            yield Finding(
                checks.ZERO,
                checks.NOTE if embedding else checks.WARNING,
                one.name,
                f"{_counted(channels, count)} zero throughout: {_numbers(channels.zero)}",
                count,
                hint="A row of an embedding for padding is zero by design."
                if embedding
                else "The channel gives its bias only, or nothing: it was pruned, or it died.",
                units=tuple(channels.zero.tolist()),
            )
    if whole:
        yield Finding(
            checks.ZERO,
            checks.NOTE,
            whole[0].name,
            "all its entries are zero",
            whole[0].channels.count if whole[0].channels else 0,
            hint="Gates, heads and the last layers of branches may start so.",
            others=tuple(one.name for one in whole[1:]),
        )


def constant_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield weights with channels whose entries are all equal; a note if all channels are so."""
    for one, channels in _with_channels(measures):
        count = len(channels.constant)
        if count and channels.length >= LIMITS.least_entries:
            everywhere = count == channels.count
            yield Finding(
                checks.CONSTANT,
                checks.NOTE if everywhere else checks.WARNING,
                one.name,
                f"{_counted(channels, count)} constant: {_numbers(channels.constant)}",
                count,
                hint="A constant kernel is an average, as of a blur."
                if everywhere
                else "Such a channel gives a multiple of the sum of its input.",
                units=tuple(channels.constant.tolist()),
            )


def outlier_findings(measures: Sequence[TensorMeasures]) -> Iterator[Finding]:
    """Yield the weights with channels of an unusual norm, the most unusual first."""
    found = {
        one.name: (channels, channels.outliers)
        for one, channels in _with_channels(measures)
        if channels.outliers is not None
    }

    def describe(name: str) -> str:
        channels, outliers = found[name]
        return (
            f"the norms of {_counted(channels, len(outliers.channels), verb='')} far from the"
            f" median of {outliers.median:.4g}: {_numbers(outliers.channels)}; that of"
            f" {outliers.channels[0]} is {outliers.norm:.4g}"
        )

    return Finding.of_largest(
        checks.OUTLIER,
        checks.NOTE,
        {name: float(outliers.scores[0]) for name, (_, outliers) in found.items()},
        LIMITS.outlier,
        describe,
        "Compare them with 'hookscope diff' against an earlier checkpoint.",
        units=lambda name: tuple(np.sort(found[name][1].channels).tolist()),
    )


def _with_channels(
    measures: Sequence[TensorMeasures],
) -> Iterator[tuple[TensorMeasures, ChannelMeasures]]:
    """Tensors with channels; one that is tied to another is left out."""
    for one in measures:
        if one.channels is not None and not one.tensor.tied_to:
            yield one, one.channels


def _counted(channels: ChannelMeasures, count: int, verb: str = "are") -> str:
    """``3 of its 64 channels are``; rows if nothing tells that they are output channels."""
    verb = "is" if verb and count == 1 else verb or "are"
    what = "channels" if channels.certain else f"rows (dimension {channels.dimension})"
    return f"{count:,} of its {channels.count:,} {what} {verb}"


def _numbers(channels: NDArray[np.intp]) -> str:
    named = ", ".join(map(str, channels[:MAX_NAMED].tolist()))
    more = len(channels) - MAX_NAMED
    return f"{named} and {more:,} more" if more > 0 else named


def check_weights(
    weights: WeightSet, options: WeightCheckOptions, advance: NamedProgress | None = None
) -> Health:
    """Return what is wrong with a set of weights. Each tensor is read once, block by block."""
    return Health(
        weight_findings(list(measure_weights(weights, advance=advance)), options.names),
        options.names,
        {},
        checks.DEFAULT_WEIGHT_THRESHOLDS.to_json(),
        {
            "weights": {
                "path": weights.path,
                "part": weights.part,
                "kind": weights.kind,
                "tensors": len(weights.tensors),
                "parameters": weights.parameters,
                "bytes": weights.nbytes,
            },
            "versions": {"hookscope": __version__},
        },
    )


def weight_findings(
    measures: Sequence[TensorMeasures], names: Iterable[str] = checks.WEIGHT_CHECKS
) -> tuple[Finding, ...]:
    """Return the findings of some checks: errors, then warnings, then notes."""
    findings = [finding for name in names for finding in FINDERS[name](measures)]
    order = list(checks.WEIGHT_CHECKS)
    return tuple(
        sorted(findings, key=lambda f: (checks.LEVELS.index(f.level), order.index(f.check)))
    )


# The function that makes each check of ``WEIGHT_CHECKS``.
FINDERS: dict[str, Callable[[Sequence[TensorMeasures]], Iterator[Finding]]] = {
    checks.NAN: nan_findings,
    checks.INF: inf_findings,
    checks.VARIANCE: variance_findings,
    checks.ZERO: zero_findings,
    checks.CONSTANT: constant_findings,
    checks.FLOAT16_OVERFLOW: float16_overflow_findings,
    checks.ADAPTER: adapter_findings,
    checks.BATCHNORM: batchnorm_findings,
    checks.OUTLIER: outlier_findings,
    checks.FLOAT16_UNDERFLOW: float16_underflow_findings,
    checks.UNREAD: unread_findings,
}
