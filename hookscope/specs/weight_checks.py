"""The checks of ``check`` on files of weights, what each measures, and its thresholds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hookscope.specs.health_checks import BATCHNORM, CHECKS, INF, NAN, UNREAD, Check

ZERO, CONSTANT, OUTLIER = "zero", "constant", "outlier"
OVERFLOW, UNDERFLOW = "float16-overflow", "float16-underflow"
ADAPTER, VARIANCE = "adapter", "variance"

WEIGHT_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            NAN,
            "NaN in the tensors",
            CHECKS[NAN].measure,
            function="weight_findings.nan_findings",
        ),
        Check(
            INF,
            "infinities there",
            CHECKS[INF].measure,
            function="weight_findings.inf_findings",
        ),
        Check(
            VARIANCE,
            "running variances that are zero or negative",
            "{} channel|{} channels",
            function="weight_findings.variance_findings",
        ),
        Check(
            ZERO,
            "channels of a weight that are zero throughout",
            "{} zero channel|{} zero channels",
            function="weight_findings.zero_findings",
        ),
        Check(
            CONSTANT,
            "channels of a weight whose entries are all equal",
            "{} constant channel|{} constant channels",
            function="weight_findings.constant_findings",
        ),
        Check(
            OVERFLOW,
            "entries that float16 cannot hold",
            "magnitude of {}",
            function="weight_findings.overflow_findings",
        ),
        Check(
            ADAPTER,
            "adapters that are still at their start values",
            "{} adapter without an effect|{} adapters without an effect",
            function="weight_findings.adapter_findings",
        ),
        Check(
            BATCHNORM,
            CHECKS[BATCHNORM].finds,
            CHECKS[BATCHNORM].measure,
            function="weight_findings.batchnorm_findings",
        ),
        Check(
            OUTLIER,
            "channels whose norm is far from the median",
            "modified z-score of {}",
            function="weight_findings.outlier_findings",
        ),
        Check(
            UNDERFLOW,
            "small entries that float16 would lose",
            "{} of the non-zero entries",
            function="weight_findings.underflow_findings",
        ),
        Check(
            UNREAD,
            "tensors without values that can be read",
            "{} tensor|{} tensors",
            function="weight_findings.unread_findings",
        ),
    )
}
# The options of ``check`` that apply to weights.
WEIGHT_OPTIONS = ("only", "skip", "trust")


@dataclass(frozen=True)
class WeightThresholds:
    """The values beyond which a measure of a tensor is a finding.

    "Ours" marks a number that no source gives.

    Attributes:
        float16_max: the largest number of float16, 65504 (IEEE 754, binary16).
        float16_least: the least positive number of float16, 2**-24 (the same).
        underflow: share of the entries that are not zero and below ``float16_least``. Ours.
        outlier: modified z-score of the norm of a channel: 0.6745 times its distance from the
            median, over the median of these distances. 3.5 is the threshold of Iglewicz and
            Hoaglin, "How to Detect and Handle Outliers" (1993), which the NIST/SEMATECH e-Handbook
            of Statistical Methods repeats in section 1.3.5.17.
        outlier_ratio: how many times larger or smaller than the median the norm must be as well:
            of thousands of nearly equal norms some are beyond any z-score by chance. Ours.
        least_channels: channels of a tensor from which on norms are compared. Ours.
        least_entries: entries of a channel from which on equal ones are a finding: a few may be
            equal by chance. Ours; a kernel of 3x3 has nine.
    """

    float16_max: float = 65504.0
    float16_least: float = 2.0**-24
    underflow: float = 0.01
    outlier: float = 3.5
    outlier_ratio: float = 3.0
    least_channels: int = 8
    least_entries: int = 9

    def to_json(self) -> dict[str, float]:
        """Return them as a plain dict."""
        return asdict(self)


DEFAULT_WEIGHT_THRESHOLDS = WeightThresholds()
