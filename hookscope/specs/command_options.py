"""The options of single commands, besides the parts of a request that commands share.

They are checked when they are made, without torch. The fields have the names and the defaults of
the keywords.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.cam_methods import DEFAULT_METHOD, UPSAMPLINGS, check_cam_options
from hookscope.specs.choices import (
    ABLATION_EDITS,
    ABLATION_METRICS,
    OPTIMIZERS,
    SWEEP_METRICS,
    check_choice,
)
from hookscope.specs.health_checks import (
    CHECKS,
    DEFAULT_THRESHOLDS,
    Check,
    Thresholds,
    select_checks,
)
from hookscope.specs.losses import check_target
from hookscope.specs.record_kinds import GRADIENT_KINDS, VALUE_KINDS, resolve_kinds
from hookscope.specs.run_checks import DEFAULT_RUN_THRESHOLDS, RUN_CHECKS, RunThresholds
from hookscope.specs.settings import setting
from hookscope.specs.sweep_edit import check_sweep_places, parse_sweep_edit
from hookscope.specs.weight_checks import WEIGHT_CHECKS

_CHECKS_OF = {"models": CHECKS, "training runs": RUN_CHECKS, "files of weights": WEIGHT_CHECKS}


def hold_iterable(options: object, name: str) -> None:
    """Convert a field that may be a generator, which can be read only once, to a tuple."""
    value = getattr(options, name)
    if value is not None and not isinstance(value, str):
        object.__setattr__(options, name, tuple(value))


@dataclass(frozen=True)
class CaptureOptions:
    """What ``capture`` records and checks."""

    what: str | Iterable[str] = ("output",)
    ops: bool = False
    attention: bool = False
    verify: bool = False
    strict: bool = False
    max_bytes: int | None = None
    stop: bool | None = False

    def __post_init__(self) -> None:
        hold_iterable(self, "what")
        self.kinds  # noqa: B018 - computed for its checks

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, VALUE_KINDS)


@dataclass(frozen=True)
class GradsOptions:
    """What ``grads`` records and checks; see ``CaptureOptions``."""

    what: str | Iterable[str] = ("output", "param")
    ops: bool = False
    verify: bool = False
    strict: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        hold_iterable(self, "what")
        self.kinds  # noqa: B018 - computed for its checks

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, GRADIENT_KINDS)


@dataclass(frozen=True)
class StepOptions:
    """The optimizer of ``step``."""

    optimizer: str = "sgd"
    lr: float | None = None
    opt_args: Mapping[str, Any] | None = None
    strict: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            near = did_you_mean(self.optimizer, OPTIMIZERS)
            listing = f"The optimizers are {', '.join(OPTIMIZERS)}."
            raise RequestError(
                f"There is no optimizer called {self.optimizer!r}.", f"{near} {listing}".strip()
            )
        if self.lr is not None and not math.isfinite(self.lr):
            raise RequestError(
                f"{self.lr} is not a valid learning rate.", "Give a finite number as --lr."
            )
        if self.lr is not None and "lr" in (self.opt_args or {}):
            raise RequestError("The learning rate is given twice.", "Leave out --opt-arg lr.")


@dataclass(frozen=True)
class GradcheckOptions:
    """The tolerances of ``gradcheck``: |a - b| <= atol + rtol |b|."""

    shape: Sequence[Sequence[int]] | Sequence[int] = ()
    eps: float = 1e-6
    atol: float = 1e-5
    rtol: float = 1e-3

    def __post_init__(self) -> None:
        numbers = (self.eps, self.atol, self.rtol)
        if self.eps <= 0 or min(numbers) < 0 or not all(map(math.isfinite, numbers)):
            raise RequestError(
                f"eps {self.eps}, atol {self.atol}, rtol {self.rtol}: eps must be above 0, atol"
                " and rtol at least 0, and all of them finite.",
                "The defaults of torch.autograd.gradcheck are 1e-6, 1e-5 and 1e-3.",
            )


@dataclass(frozen=True)
class ChosenChecks:
    """Which checks ``check`` makes."""

    only: str | Iterable[str] | None = None
    skip: str | Iterable[str] | None = None

    known: ClassVar[Mapping[str, Check]]

    def __post_init__(self) -> None:
        hold_iterable(self, "only")
        hold_iterable(self, "skip")
        self.names  # noqa: B018 - computed for its checks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks to make."""
        return select_checks(self.only, self.skip, self.known, _CHECKS_OF)


@dataclass(frozen=True)
class CheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a model, and the thresholds of its findings.

    The numbers are those of ``hookscope.specs.health_checks.Thresholds``; a ``floor`` of None is
    its default.
    """

    known = CHECKS

    dead: float = DEFAULT_THRESHOLDS.dead
    saturated: float = DEFAULT_THRESHOLDS.saturated
    margin: float = DEFAULT_THRESHOLDS.margin
    vanishing: float = DEFAULT_THRESHOLDS.vanishing
    exploding: float = DEFAULT_THRESHOLDS.exploding
    floor: float | None = None
    ceiling: float = DEFAULT_THRESHOLDS.ceiling

    def __post_init__(self) -> None:
        super().__post_init__()
        self.thresholds  # noqa: B018 - computed for its checks

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of the findings."""
        return Thresholds(
            dead=self.dead,
            saturated=self.saturated,
            margin=self.margin,
            vanishing=self.vanishing,
            exploding=self.exploding,
            floor=DEFAULT_THRESHOLDS.floor if self.floor is None else self.floor,
            ceiling=self.ceiling,
        )


@dataclass(frozen=True)
class RunCheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a training run, and the thresholds that have an option."""

    known = RUN_CHECKS

    dead: float = DEFAULT_RUN_THRESHOLDS.dead
    vanishing: float = DEFAULT_RUN_THRESHOLDS.vanishing
    floor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.thresholds  # noqa: B018 - computed for its checks

    @property
    def thresholds(self) -> RunThresholds:
        """The thresholds of the findings."""
        floor = DEFAULT_RUN_THRESHOLDS.floor if self.floor is None else self.floor
        return RunThresholds(dead=self.dead, vanishing=self.vanishing, floor=floor)


@dataclass(frozen=True)
class WeightCheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a file of weights."""

    known = WEIGHT_CHECKS


@dataclass(frozen=True)
class AblateOptions:
    """How ``ablate`` ablates layers."""

    by: str = "zero"
    channels: bool = False
    rank: str | None = None

    def __post_init__(self) -> None:
        check_choice("by", self.by, ABLATION_EDITS)
        check_choice("rank", self.rank or ABLATION_METRICS[0], ABLATION_METRICS)


@dataclass(frozen=True)
class SweepOptions:
    """What ``sweep`` changes and shows."""

    edit: str = "zero"
    positions: str | None = None
    heads: int | str | None = None
    experts: bool = False
    against: str | int | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        edit = parse_sweep_edit(self.edit)
        check_sweep_places(edit, self.positions, self.heads, self.experts)
        check_choice("metric", self.metric or SWEEP_METRICS[0], SWEEP_METRICS)
        if self.metric == "difference" and self.against is None:
            raise RequestError(
                "The metric difference needs a second class.", "Add --against CLASS."
            )


@dataclass(frozen=True)
class LensOptions:
    """How ``lens`` reads the layers of a language model."""

    section = "Lens"

    norm: str | None = setting(
        None,
        "Final norm, or none. Default: the module that feeds the head.",
        metavar="NAME",
        python="name of the final norm, or ``none``. None: the module that returns what the head"
        " gets.",
    )
    head: str | None = setting(
        None,
        "Unembedding. Default: the module that returns the logits.",
        metavar="NAME",
        python="name of the unembedding. None: the module that returns the logits.",
    )
    target: str | int = setting(
        "argmax",
        "Token of the rank and probability: text, id or argmax.",
        metavar="TOKEN",
        python="the token whose rank and probability each cell has: its text, its id, or"
        " ``argmax`` for the token that the whole model predicts at that position.",
    )

    def __post_init__(self) -> None:
        if (
            self.target == ""
            or isinstance(self.target, bool)
            or not isinstance(self.target, str | int)
        ):
            raise RequestError(
                f"{self.target!r} is not a token.", "Give its text, such as ' Paris', or its id."
            )


@dataclass(frozen=True)
class CamOptions:
    """How ``cam`` computes a map."""

    by: str = DEFAULT_METHOD
    layer: str | None = None
    target: Any = "argmax"
    upsample: str = UPSAMPLINGS[0]
    steps: int | None = None
    baseline: Any = None
    patch: int | None = None

    def __post_init__(self) -> None:
        check_cam_options(self.by, self.layer, self.steps, self.baseline, self.upsample, self.patch)
        check_target(self.target)
