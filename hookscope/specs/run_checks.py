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
        ),
        Check(SPIKE, "spikes of the loss and of the gradient norm", "{}"),
        Check(LOSS, "a loss that does not fall", "fall of {}"),
        Check(LEARNING_RATE, "a learning rate at which the loss grows", "update/weight {}"),
        Check(UPDATES, "updates that are too large or too small for their weights", "{}"),
        Check(
            DEAD,
            "layers whose units are zero for the whole batch",
            CHECKS[DEAD].measure,
            ("dead",),
        ),
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
}
# The options of ``check`` that apply to a run.
RUN_OPTIONS = ("only", "skip", "dead", "vanishing", "floor")


@dataclass(frozen=True)
class RunThresholds:
    """The values beyond which a curve of a training run is a finding.

    "Ours" marks a number that no source gives.
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
