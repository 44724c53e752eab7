"""The checks of ``check`` on a training run, what each measures, and its thresholds. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from hookscope.errors import RequestError
from hookscope.specs.health_checks import (
    CHECKS,
    DEAD,
    DEFAULT_THRESHOLDS,
    FROZEN,
    UNUSED,
    VANISHING,
    Check,
)

NONFINITE, SPIKE, LOSS, LEARNING_RATE, UPDATES = (
    *("nonfinite", "spike", "loss", "learning-rate", "updates"),
)
GROWTH, OVERFLOW, SKIPPED, ADAM, INCOMPLETE, UNFINISHED = (
    *("growth", "overflow", "skipped", "adam", "incomplete", "unfinished"),
)

RUN_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            NONFINITE,
            "the first NaN or infinity: its step, phase and layer",
            "{}",
            function="run_findings.first_nonfinite.nonfinite_findings",
        ),
        Check(
            SPIKE,
            "spikes of the loss and of the gradient norm",
            "{}",
            function="run_findings.loss_curve.spike_findings",
        ),
        Check(
            LOSS,
            "a loss that does not fall",
            "fall of {}",
            function="run_findings.loss_curve.loss_findings",
        ),
        Check(
            LEARNING_RATE,
            "a learning rate at which the loss grows",
            "update/weight {}",
            function="run_findings.loss_curve.learning_rate_findings",
        ),
        Check(
            UPDATES,
            "updates that are too large or too small for their weights",
            "{}",
            function="run_findings.weight_updates.update_findings",
        ),
        Check(
            DEAD,
            "layers whose units are zero for the whole batch",
            CHECKS[DEAD].measure,
            ("dead",),
            function="run_findings.layer_activations.dead_findings",
        ),
        Check(
            VANISHING,
            "layers whose gradients are too small",
            CHECKS[VANISHING].measure,
            ("vanishing", "floor"),
            function="run_findings.weight_updates.vanishing_findings",
        ),
        Check(
            GROWTH,
            "activations that grow with depth at the start",
            "growth of {}",
            function="run_findings.layer_activations.growth_findings",
        ),
        Check(
            OVERFLOW,
            "activations near the largest number of float16",
            "{}",
            function="run_findings.layer_activations.overflow_findings",
        ),
        Check(
            UNUSED,
            "parameters whose gradient stays zero",
            "no gradient in {} sampled step|no gradient in {} sampled steps",
            function="run_findings.weight_updates.unused_findings",
        ),
        Check(
            FROZEN,
            "layers that are frozen while others are trained",
            CHECKS[FROZEN].measure,
            function="run_findings.weight_updates.frozen_findings",
        ),
        Check(
            SKIPPED,
            "many steps that the gradient scaler skipped",
            "{} of steps skipped",
            function="run_findings.run_health.skipped_findings",
        ),
        Check(
            ADAM,
            "gradients that outgrow Adam's second moment",
            "RMS of {}",
            function="run_findings.weight_updates.adam_findings",
        ),
        Check(
            INCOMPLETE,
            "a record that has gaps",
            "",
            function="run_findings.run_health.incomplete_findings",
        ),
        Check(
            UNFINISHED,
            "a script that did not end normally",
            "",
            function="run_findings.run_health.unfinished_findings",
        ),
    )
}
# The options of ``check`` that apply to a run.
RUN_OPTIONS = ("only", "skip", "dead", "vanishing", "floor")


@dataclass(frozen=True)
class RunThresholds:
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

    def __post_init__(self) -> None:
        for name, value in self.to_json().items():
            if not value >= 0 or (name != "dead" and value == 0):
                raise RequestError(f"{name} cannot be {value:g}.", "Give a number above 0.")
        if self.dead > 1:
            raise RequestError(
                f"dead cannot be {self.dead:g}: it is a share.", "Give a number from 0 to 1."
            )

    def to_json(self) -> dict[str, float]:
        """Return them as a plain dict."""
        return asdict(self)


DEFAULT_RUN_THRESHOLDS = RunThresholds()


def check_run_options(path: object, chosen: Iterable[str]) -> None:
    """Raise RequestError if an option of ``check`` is chosen that a run has no use for."""
    for name in chosen:
        if name not in RUN_OPTIONS:
            option = f"--{name.replace('model_args', 'model_arg').replace('_', '-')}"
            accepted = ", ".join(f"--{name}" for name in RUN_OPTIONS)
            raise RequestError(
                f"{option} is for models, and {path} is the folder of a training run.",
                f"Leave it out. A run takes {accepted}.",
            )
