"""The result of checking a model or a training run, and which gradients vanish or explode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.records import Record
from hookscope.results.result import Result
from hookscope.results.stats import Stats
from hookscope.specs.checks import (
    DEFAULT_THRESHOLDS,
    EXPLODING,
    LEVELS,
    NOTE,
    VANISHING,
    Thresholds,
)
from hookscope.specs.tensor_key import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD

# A gradient is compared with the first of its kind, which is the nearest to the loss. A fixed
# number would not do, because the scale of all gradients depends on the loss. Nor would the median,
# because in a network whose gradients vanish most layers have none.
# Measured on randomly initialized networks without such faults (VGG, ResNet, DenseNet, RegNet,
# Swin): norms at outputs stay above 1/6,000 of the first one, norms at parameters, which also scale
# with the activations and with the size of the parameter, above 1/100,000.
SPREAD = {OUTPUT_GRAD: 1.0, INPUT_GRAD: 1.0, PARAM_GRAD: 100.0}


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        check: name of the check.
        level: ``error``, ``warning`` or ``note``.
        layer: dotted name of the module, ``.`` for the model itself; of a tensor in a file of
            weights its name; empty if it is of a whole run.
        message: one sentence, without the layer's name.
        measured: the measured number.
        threshold: the number it was compared with; None if the check has no threshold.
        hint: what to do about it; may be empty.
        others: other layers with the same finding, in order.
        units: indices of all dead units, or of the channels of a weight that the finding is about.
        step: the first step of a training run at which it holds, from 0; None without one.
        model: name of the model, in a run that has several; else empty.
        ranks: the processes of a run of several where it holds; else empty.
        run: the letter or the folder of the run, where several runs are checked; else empty.
    """

    check: str
    level: str
    layer: str
    message: str
    measured: float
    threshold: float | None = None
    hint: str = ""
    others: tuple[str, ...] = ()
    units: tuple[int, ...] = ()
    step: int | None = None
    model: str = ""
    ranks: tuple[int, ...] = ()
    run: str = ""

    @classmethod
    def of_largest(
        cls,
        check: str,
        level: str,
        measures: Mapping[str, float],
        threshold: float,
        describe: Callable[[str], str],
        hint: str,
        units: Callable[[str], tuple[int, ...]] = lambda layer: (),
    ) -> Iterator[Finding]:
        """Yield one finding on the layer of the largest measure, with the others in its order."""
        layers = sorted(measures, key=measures.__getitem__, reverse=True)
        if layers:
            first, *others = layers
            yield cls(
                check,
                level,
                first,
                describe(first),
                measures[first],
                threshold,
                hint,
                others=tuple(others),
                units=units(first),
            )


@dataclass(frozen=True)
class Health(Result):
    """The result of checking a model or a training run.

    Attributes:
        findings: errors, then warnings, then notes; each in the order of the table of checks.
        checks: the checks that were made.
        unmade: the checks that could not be made, each with the reason.
        thresholds: by the name of the option; of a run, by that of the field of ``RunThresholds``.
        metadata: model, inputs, seed, versions, loss; of a run, what ``run`` is; of weights, what
            ``weights`` are.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> _ = torch.nn.init.constant_(net[0].bias, -100)
        >>> health = hookscope.check(net, input=torch.ones(2, 4))
        >>> health.ok, [finding.layer for finding in health.of("dead")]
        (False, ['1'])
    """

    view = "health"

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    unmade: dict[str, str]
    thresholds: dict[str, float]
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        model = self.metadata.get("run", {}).get("folder", model)
        model = self.metadata.get("weights", {}).get("path", model)
        counts = [sum(finding.level == level for finding in self.findings) for level in LEVELS]
        levels = ", ".join(
            f"{n} {level}{'s' * (n != 1)}" for n, level in zip(counts, LEVELS, strict=True)
        )
        checks = len(self.checks)
        return f"<Health of {model}: {levels}; {checks} check{'s' * (checks != 1)}>"

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning."""
        return all(finding.level == NOTE for finding in self.findings)

    def of(self, check: str) -> tuple[Finding, ...]:
        """Return the findings of one check."""
        return tuple(finding for finding in self.findings if finding.check == check)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.metadata,
            "ok": self.ok,
            "checks": list(self.checks),
            "unmade": self.unmade,
            "thresholds": self.thresholds,
            "findings": [asdict(finding) for finding in self.findings],
        }


def gradient_marks(
    records: Sequence[Record], limits: Thresholds = DEFAULT_THRESHOLDS
) -> dict[str, str]:
    """Return ``vanishing`` or ``exploding`` by key, for each record beyond a limit."""
    first = first_norms(records)
    marks = {r.key: _mark(r.stats, first.get(r.kind, 0.0), r.kind, limits) for r in records}
    return {key: mark for key, mark in marks.items() if mark}


def first_norms(records: Sequence[Record]) -> dict[str, float]:
    """Return for each kind the first norm, with which the others are compared."""
    first: dict[str, float] = {}
    for record in records:
        if record.stats.norm:
            first.setdefault(record.kind, record.stats.norm)
    return first


def _mark(stats: Stats, first: float, kind: str, limits: Thresholds) -> str:
    if stats.absmax is None or stats.norm is None or kind not in SPREAD:
        return ""
    if stats.norm < max(limits.floor, first * limits.vanishing / SPREAD[kind]):
        return VANISHING
    if stats.absmax > limits.ceiling or 0 < first * limits.exploding * SPREAD[kind] < stats.norm:
        return EXPLODING
    return ""
