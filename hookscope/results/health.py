"""What came of checking a model, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hookscope.specs.health_checks import NOTE


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        check: name of the check.
        level: ``error``, ``warning`` or ``note``.
        layer: dotted name of the module, ``.`` for the model itself.
        message: one sentence, without the layer's name.
        measured: the number that it is judged by.
        threshold: the number that it was held against; None where there is nothing to set.
        hint: what to do about it; may be empty.
        others: further layers of the same finding, in order.
    """

    check: str
    level: str
    layer: str
    message: str
    measured: float
    threshold: float | None = None
    hint: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """What came of checking a model.

    Attributes:
        findings: errors first, then warnings, then notes; each in the order of the table of checks.
        checks: the checks that were made.
        unmade: the checks that could not be made, and why.
        thresholds: by the name of the option.
        metadata: model, inputs, seed, versions, loss.
    """

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    unmade: dict[str, str]
    thresholds: dict[str, float]
    metadata: dict[str, Any]

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
