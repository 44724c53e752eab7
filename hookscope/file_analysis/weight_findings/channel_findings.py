"""Findings on the output channels of a weight: zero, constant, or far from the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.weight_findings.value_findings import adapter_start
from hookscope.file_analysis.weights.channel_measures import ChannelMeasures
from hookscope.file_analysis.weights.tensor_measures import TensorMeasures
from hookscope.results.health import Finding
from hookscope.specs.health_checks import NOTE, WARNING
from hookscope.specs.weight_checks import CONSTANT, DEFAULT_WEIGHT_THRESHOLDS, OUTLIER, ZERO

LIMITS = DEFAULT_WEIGHT_THRESHOLDS
MAX_NAMED = 8  # channels that a sentence names

# The row of a padding token is zero by design, and rows of tokens that never occur keep their start
# values.
_EMBEDDING = re.compile(r"(^|[._])(\w*emb\w*|wte|wpe|tok\w*)([._]|$)", re.IGNORECASE)


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
                ZERO,
                NOTE if embedding else WARNING,
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
            ZERO,
            NOTE,
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
                CONSTANT,
                NOTE if everywhere else WARNING,
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
        OUTLIER,
        NOTE,
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
