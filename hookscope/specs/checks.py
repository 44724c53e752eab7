"""The checks of models, training runs and weights: what each finds, measures, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)

NAN, INF, DEAD, SATURATED, VANISHING, EXPLODING = (
    *("nan", "inf", "dead", "saturated"),
    *("vanishing", "exploding"),
)
UNUSED, FROZEN, UNCALLED, BATCHNORM, DUPLICATED, TIED, DTYPES, DEVICES, UNREAD = (
    *("unused", "frozen", "uncalled", "batchnorm"),
    *("duplicated", "tied", "dtypes", "devices", "unread"),
)
BATCH, DETERMINISM, MASK = "batch", "determinism", "mask"
RUN = "run"  # that the model ran to its end, which all other checks need

SHARES = ("dead", "saturated", "margin")
NONFINITE, SPIKE, LOSS, LEARNING_RATE, UPDATES = (
    *("nonfinite", "spike", "loss", "learning-rate", "updates"),
)
GROWTH, OVERFLOW, SKIPPED, ADAM, INCOMPLETE, UNFINISHED = (
    *("growth", "overflow", "skipped", "adam", "incomplete", "unfinished"),
)
ZERO, CONSTANT, OUTLIER = "zero", "constant", "outlier"
FLOAT16_OVERFLOW, FLOAT16_UNDERFLOW = "float16-overflow", "float16-underflow"
ADAPTER, VARIANCE = "adapter", "variance"


class Check(NamedTuple):
    """A check of a model, of a training run or of weights."""

    name: str
    finds: str
    measure: str  # the sentence of a measured value: one, or ``singular|plural``
    thresholds: tuple[str, ...] = ()  # the options that move its limits
    backward: bool = False
    named: bool = False  # made only if --only names it: it runs the model several times

    @classmethod
    def table(cls, *checks: Check) -> dict[str, Check]:
        """Return checks by their names."""
        return {check.name: check for check in checks}


CHECKS = Check.table(
    Check(
        NAN,
        "NaN in activations, gradients, parameters or the input",
        "{} NaN entry|{} NaN entries",
    ),
    Check(INF, "infinities there", "{} infinite entry|{} infinite entries"),
    Check(
        DEAD,
        "ReLU-like layers with units that are zero everywhere",
        "{} of units are always zero",
        ("dead",),
    ),
    Check(
        SATURATED,
        "sigmoid, tanh, softmax and similar at their bounds",
        "{} of entries are at a bound",
        ("saturated", "margin"),
    ),
    Check(
        VANISHING,
        "gradients that become too small in the backward pass",
        "{}",
        ("vanishing", "floor"),
        True,
    ),
    Check(
        EXPLODING,
        "gradients that become too large in the backward pass",
        "{}",
        ("exploding", "ceiling"),
        True,
    ),
    Check(
        UNUSED,
        "parameters outside the loss",
        "{} parameter without a gradient|{} parameters without a gradient",
        (),
        True,
    ),
    Check(
        FROZEN,
        "parameters with requires_grad=False",
        "{} frozen parameter|{} frozen parameters",
    ),
    Check(UNCALLED, "modules that never run", "{} calls"),
    Check(
        BATCHNORM,
        "running statistics that were never updated",
        "{} layer with mean 0 and variance 1|{} layers with mean 0 and variance 1",
    ),
    Check(
        DUPLICATED,
        "parameters that are copies of others",
        "{} parameter of equal values|{} parameters of equal values",
    ),
    Check(
        TIED,
        "parameters that are one tensor under several names",
        "{} further name|{} further names",
    ),
    Check(DTYPES, "floating-point types that are mixed", "{} floating-point types"),
    Check(DEVICES, "parameters on several devices", "{} devices"),
    Check(UNREAD, "parameters and buffers with values that cannot be read", "{} tensor|{} tensors"),
    Check(
        BATCH,
        "rows that depend on the rest of their batch, its order or its padding",
        "relative change of {}",
        named=True,
    ),
    Check(
        DETERMINISM,
        "values that differ between runs from one seed, here and in a new process",
        "{} tensor differs|{} tensors differ",
        named=True,
    ),
    Check(
        MASK,
        "attention masks that leave a row no key",
        "{} row without a key|{} rows without a key",
        named=True,
    ),
)


@dataclass(frozen=True)
class _Limits:
    """Numbers above 0; some are shares, which may be 0."""

    def __post_init__(self) -> None:
        for name, value in self.to_json().items():
            if not value >= 0 or (name not in SHARES and value == 0):
                raise RequestError(f"{name} cannot be {value:g}.", "Give a number above 0.")
            if name in SHARES and value > 1:
                raise RequestError(
                    f"{name} cannot be {value:g}: it is a share.", "Give a number from 0 to 1."
                )

    def to_json(self) -> dict[str, float]:
        """Return them as a plain dict."""
        return asdict(self)


@dataclass(frozen=True)
class Thresholds(_Limits):
    """The values beyond which a measure is a finding.

    Attributes:
        dead: share of dead units in a layer. The default, half, is that of the rule ``DeadRelu`` of
            Amazon SageMaker Debugger (parameter ``threshold_layer``, 50 percent:
            docs.aws.amazon.com/sagemaker/latest/dg/dead-relu.html). That rule reports a layer above
            the threshold, and counts a unit as dead if it is active in less than 1 percent of its
            values. Here a layer at the threshold is reported too, and a dead unit is always zero.
        saturated: share of entries at a bound.
        margin: how near a bound counts as at it, as a share of the width between the bounds.
        vanishing: norm of a gradient over the first of its kind; parameters' 1/100 of it.
        exploding: the same upwards; parameters' 100 times it.
        floor: norm of a gradient under which it has vanished whatever the others are: Adam's
            epsilon, below which even a step that divides by the size of the gradient ignores it.
        ceiling: entry of a gradient over which it has exploded: the largest float16.
    """

    dead: float = 0.5
    saturated: float = 0.9
    margin: float = 0.01
    vanishing: float = 1e-4
    exploding: float = 1e4
    floor: float = 1e-8
    ceiling: float = 65504.0


DEFAULT_THRESHOLDS = Thresholds()


def select_checks(
    only: str | Iterable[str] | None,
    skip: str | Iterable[str] | None,
    checks: Mapping[str, Check] = CHECKS,
    others: Mapping[str, Mapping[str, Check]] | None = None,
) -> tuple[str, ...]:
    """Return the names of the checks to make, in the order of the table."""
    wanted, unwanted = (
        [word.strip() for word in words.split(",")] if isinstance(words, str) else list(words or ())
        for words in (only, skip)
    )
    for word in (*wanted, *unwanted):
        if word not in checks:
            kinds = " and ".join(kind for kind, other in (others or {}).items() if word in other)
            raise RequestError(
                f"The check {word} is only for {kinds}."
                if kinds
                else f"There is no check called {word!r}.",
                f"{did_you_mean(word, checks)} The checks are {', '.join(checks)}.".strip(),
            )
    usual = [name for name, check in checks.items() if not check.named]
    made = usual if only is None else wanted
    chosen = [name for name in checks if name in made and name not in unwanted]
    if not chosen:
        raise RequestError("No check is left.", "Name fewer with --skip, or others with --only.")
    return tuple(chosen)


# What `run --check` and `check --live` look for.
STEP_CHECKS = {name: CHECKS[name] for name in (NAN, INF, DEAD, SATURATED)}

RUN_CHECKS = Check.table(
    Check(
        NONFINITE,
        "the first NaN or infinity: its step, phase and layer",
        "{}",
    ),
    Check(SPIKE, "spikes of the loss and of the gradient norm", "{}"),
    Check(LOSS, "a loss that does not fall", "fall of {}"),
    Check(LEARNING_RATE, "a learning rate at which the loss grows", "update/weight {}"),
    Check(UPDATES, "updates that are too large or too small for their weights", "{}"),
    Check(DEAD, "layers whose units are zero for the whole batch", CHECKS[DEAD].measure, ("dead",)),
    Check(
        VANISHING,
        "layers whose gradients are too small",
        CHECKS[VANISHING].measure,
        ("vanishing", "floor"),
    ),
    Check(GROWTH, "activations that grow with depth at the start", "growth of {}"),
    Check(OVERFLOW, "activations near the largest number of float16", "{}"),
    Check(
        UNUSED,
        "parameters whose gradient stays zero",
        "no gradient in {} sampled step|no gradient in {} sampled steps",
    ),
    Check(FROZEN, "layers that are frozen while others are trained", CHECKS[FROZEN].measure),
    Check(SKIPPED, "many steps that the gradient scaler skipped", "{} of steps skipped"),
    Check(ADAM, "gradients that outgrow Adam's second moment", "RMS of {}"),
    Check(INCOMPLETE, "a record that has gaps", ""),
    Check(UNFINISHED, "a script that did not end normally", ""),
)


@dataclass(frozen=True)
class RunThresholds(_Limits):
    """The values beyond which a curve of a training run is a finding.

    "Ours" marks a number that no source gives.

    Attributes:
        dead: share of dead units in a layer: half, from the rule ``DeadRelu`` of Amazon SageMaker
            Debugger (docs.aws.amazon.com/sagemaker/latest/dg/dead-relu.html).
        vanishing: 100 times the least ratio of a layer's gradient norm to that of the layer with
            the largest. Ours; that of ``check`` on a model.
        floor: norm of a layer's gradient under which it has vanished whatever the others are: 1e-7,
            from the rule ``VanishingGradient`` of Amazon SageMaker Debugger
            (docs.aws.amazon.com/sagemaker/latest/dg/vanishing-gradient.html). That rule takes the
            mean of the magnitudes, which is at most the norm.
        spike_deviations: standard deviations over the mean of the previous values: 6, from the
            stability monitor of OLMo-core (github.com/allenai/OLMo-core).
        spike_window: how many previous values: at most 128, from the same.
        spike_history: fewer previous values than this are not judged. Ours.
        spike_rise: least rise over the mean, relative to it: the standard deviation of a curve that
            is nearly constant is rounding error. Ours.
        loss_fall: least fall of the loss over the run, relative to its start: 0.1%, from the rule
            ``LossNotDecreasing`` of Amazon SageMaker Debugger
            (docs.aws.amazon.com/sagemaker/latest/dg/loss-not-decreasing.html).
        loss_steps: least number of values at the start and at the end whose medians are compared:
            10, from the same.
        loss_rise: how many times the loss at the start a later loss is when it grows. Ours.
        rate_update: norm of an update over that of its weight in more than half of the weights,
            with which a growing loss is put down to the learning rate: 0.1. Ours, measured:
            docs/check-a-training-run.md.
        update_high: norm of an update over that of its weight: 1e-2, ten times the aim of A.
            Karpathy (github.com/karpathy/nn-zero-to-hero, lecture 4), who gives 1e-3 for
            the ratio of standard deviations. The factor is ours.
        update_low: the same downwards, 1e-5. The factor is ours.
        growth: of the RMS of outputs over the depth at the start: 10. Ours, after the coordinate
            check of muP (github.com/microsoft/mup).
        overflow: largest magnitude over the largest number of float16: 0.9. The module
            ``debug_utils`` of transformers reports infinities of float16, with the magnitudes
            before them; the share is ours.
        unused: share of the last ``unused_window`` sampled steps in which a gradient is zero: 5 of
            8, from torchlens (github.com/johnmarktaylor91/torchlens).
        unused_window: the 8 of it.
        skipped: share of skipped steps. Ours: PyTorch's ``GradScaler`` skips a step each time
            that it has doubled its scale too far, by default once in 2,000 steps.
        skipped_start: steps at the start that do not count: the scale begins at 65,536 and is
            halved with each skip. Ours.
        adam_rms: root of the mean of g^2 / max(v, eps^2): 2.3, at which arXiv 2304.13013
            counts a spike of it; a loss spike follows 1 to 8 steps later. It is about 1 where
            gradients are stationary.
    """

    dead: float = DEFAULT_THRESHOLDS.dead
    vanishing: float = DEFAULT_THRESHOLDS.vanishing
    floor: float = 1e-7
    spike_deviations: float = 6.0
    spike_window: int = 128
    spike_history: int = 16
    spike_rise: float = 0.1
    loss_fall: float = 1e-3
    loss_steps: int = 10
    loss_rise: float = 2.0
    rate_update: float = 0.1
    update_high: float = 1e-2
    update_low: float = 1e-5
    growth: float = 10.0
    overflow: float = 0.9
    unused: float = 5 / 8
    unused_window: int = 8
    skipped: float = 0.1
    skipped_start: int = 20
    adam_rms: float = 2.3


DEFAULT_RUN_THRESHOLDS = RunThresholds()


WEIGHT_CHECKS = Check.table(
    Check(NAN, "NaN in the tensors", CHECKS[NAN].measure),
    Check(INF, "infinities there", CHECKS[INF].measure),
    Check(VARIANCE, "running variances that are zero or negative", "{} channel|{} channels"),
    Check(
        ZERO, "channels of a weight that are zero throughout", "{} zero channel|{} zero channels"
    ),
    Check(
        CONSTANT,
        "channels of a weight whose entries are all equal",
        "{} constant channel|{} constant channels",
    ),
    Check(FLOAT16_OVERFLOW, "entries that float16 cannot hold", "magnitude of {}"),
    Check(
        ADAPTER,
        "adapters that are still at their start values",
        "{} adapter without an effect|{} adapters without an effect",
    ),
    Check(BATCHNORM, CHECKS[BATCHNORM].finds, CHECKS[BATCHNORM].measure),
    Check(OUTLIER, "channels whose norm is far from the median", "modified z-score of {}"),
    Check(FLOAT16_UNDERFLOW, "small entries that float16 would lose", "{} of the non-zero entries"),
    Check(UNREAD, "tensors without values that can be read", "{} tensor|{} tensors"),
)


@dataclass(frozen=True)
class WeightThresholds(_Limits):
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


DEFAULT_WEIGHT_THRESHOLDS = WeightThresholds()
