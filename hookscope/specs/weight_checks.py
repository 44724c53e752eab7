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
        Check(NAN, "NaN in the tensors", CHECKS[NAN].measure),
        Check(INF, "infinities there", CHECKS[INF].measure),
        Check(
            VARIANCE,
            "running variances that are zero or negative",
            "{} channel|{} channels",
        ),
        Check(
            ZERO,
            "channels of a weight that are zero throughout",
            "{} zero channel|{} zero channels",
        ),
        Check(
            CONSTANT,
            "channels of a weight whose entries are all equal",
            "{} constant channel|{} constant channels",
        ),
        Check(OVERFLOW, "entries that float16 cannot hold", "magnitude of {}"),
        Check(
            ADAPTER,
            "adapters that are still at their start values",
            "{} adapter without an effect|{} adapters without an effect",
        ),
        Check(BATCHNORM, CHECKS[BATCHNORM].finds, CHECKS[BATCHNORM].measure),
        Check(OUTLIER, "channels whose norm is far from the median", "modified z-score of {}"),
        Check(
            UNDERFLOW,
            "small entries that float16 would lose",
            "{} of the non-zero entries",
        ),
        Check(UNREAD, "tensors without values that can be read", "{} tensor|{} tensors"),
    )
}
# The options of ``check`` that apply to weights.
WEIGHT_OPTIONS = ("only", "skip", "trust")


@dataclass(frozen=True)
class WeightThresholds:
    """The values beyond which a measure of a tensor is a finding.

    "Ours" marks a number that no source gives.
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
