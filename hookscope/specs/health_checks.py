"""The checks of ``check`` by name, what each measures, and its thresholds. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NamedTuple

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
RUN = "run"  # that the model ran to its end, which all other checks need


class Check(NamedTuple):
    """A check of a model, of a training run or of weights.

    Attributes:
        name: what ``--only`` and ``--skip`` call it.
        finds: what it finds, for the help.
        measure: the sentence of a measured value: one, or ``singular|plural``.
        thresholds: the options that move its limits.
        backward: whether it needs a backward pass.
        function: what finds it in a run or in weights: its file in ``hookscope.file_analysis`` and
            its name, ``weight_findings.zero_findings``. A model is checked in one
            pass by ``hookscope.model_analysis.health``.
    """

    name: str
    finds: str
    measure: str
    thresholds: tuple[str, ...] = ()
    backward: bool = False
    function: str = ""

    def find(self, measured: Any) -> Iterator[Any]:
        """Yield the findings in what was measured of a run or of weights."""
        module, _, name = self.function.rpartition(".")
        found: Iterator[Any] = getattr(import_module(f"hookscope.file_analysis.{module}"), name)(
            measured
        )
        yield from found


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
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
        Check(
            UNREAD, "parameters and buffers with values that cannot be read", "{} tensor|{} tensors"
        ),
    )
}


SHARES = ("dead", "saturated", "margin")


@dataclass(frozen=True)
class Thresholds:
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
        floor: norm of a gradient under which it has vanished whatever the others are.
        ceiling: entry of a gradient over which it has exploded.

    Raises:
        RequestError: a share is not between 0 and 1, or another number not above 0.
    """

    dead: float = 0.5
    saturated: float = 0.9
    margin: float = 0.01
    vanishing: float = 1e-4
    exploding: float = 1e4
    floor: float = 1e-8
    ceiling: float = 65504.0

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


DEFAULT_THRESHOLDS = Thresholds()


def select_checks(
    only: str | Iterable[str] | None,
    skip: str | Iterable[str] | None,
    checks: Mapping[str, Check] = CHECKS,
    others: Mapping[str, Mapping[str, Check]] | None = None,
) -> tuple[str, ...]:
    """Return the names of the checks to make, in the order of the table.

    Example:
        >>> select_checks("inf,nan", None), len(select_checks(None, ["tied"])) == len(CHECKS) - 1
        (('nan', 'inf'), True)
    """
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
    chosen = [n for n in checks if (only is None or n in wanted) and n not in unwanted]
    if not chosen:
        raise RequestError("No check is left.", "Name fewer with --skip, or others with --only.")
    return tuple(chosen)
