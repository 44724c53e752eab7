"""Checks a set of weights: all findings, as the result of ``check``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookscope.file_analysis.weights.tensor_measures import TensorMeasures, measure_weights
from hookscope.files.progress import NamedProgress
from hookscope.results.health import Finding, Health
from hookscope.specs.command_options import WeightCheckOptions
from hookscope.specs.health_checks import LEVELS
from hookscope.specs.weight_checks import (
    DEFAULT_WEIGHT_THRESHOLDS,
    WEIGHT_CHECKS,
)
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.version import __version__


def check_weights(
    weights: WeightSet, options: WeightCheckOptions, advance: NamedProgress | None = None
) -> Health:
    """Return what is wrong with a set of weights. Each tensor is read once, block by block."""
    return Health(
        weight_findings(list(measure_weights(weights, advance=advance)), options.names),
        options.names,
        {},
        DEFAULT_WEIGHT_THRESHOLDS.to_json(),
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
    measures: Sequence[TensorMeasures], names: Iterable[str] = WEIGHT_CHECKS
) -> tuple[Finding, ...]:
    """Return the findings of some checks: errors, then warnings, then notes."""
    findings = [finding for name in names for finding in WEIGHT_CHECKS[name].find(measures)]
    order = list(WEIGHT_CHECKS)
    return tuple(sorted(findings, key=lambda f: (LEVELS.index(f.level), order.index(f.check))))
