"""What came of checking a model: one sentence for each finding, and the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.health import Finding, Health
from hookscope.specs.health_checks import CHECKS, ERROR, LEVELS, NOTE, WARNING
from hookscope.views.text.coverage import NAMED, listed
from hookscope.views.text.grads import loss_lines
from hookscope.views.text.lower import blocks, sentence
from hookscope.views.text.records import LOUD, QUIET
from hookscope.views.text.text import plural, real

STYLES = {ERROR: LOUD, WARNING: QUIET, NOTE: ""}


def check_lines(health: Health, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the findings, the worst first, and what was checked.

    Args:
        health: what was found.
        width: cells of the terminal, None for a pipe, where a finding is one line.
        ascii: write everything outside ASCII as an escape.
    """
    found = [_finding(finding, width, ascii) for finding in health.findings]
    told = loss_lines(health.metadata, width, ascii) + verdict_lines(health, width, ascii)
    return blocks(*found, told, width=width)


def _finding(finding: Finding, width: int | None, ascii: bool) -> list[Text]:
    told = told_of(finding, NAMED if width is not None else None)
    small = f"{finding.level} {finding.check}{measure_of(finding)}"
    style = STYLES[finding.level]
    if width is None:
        hint = f" {finding.hint}" if finding.hint else ""
        return sentence(f"{told} [{small}]{hint}", None, ascii, style)
    lines = sentence(told, width, ascii, style) + sentence(f"{small}.", width, ascii, "dim")
    return lines + (sentence(finding.hint, width, ascii, "dim") if finding.hint else [])


def told_of(finding: Finding, some: int | None = None) -> str:
    """Return the sentence, the layer first; of further layers at most ``some`` by name."""
    message = finding.message.rstrip(".")
    others = f"; likewise {listed(finding.others, some)}" if finding.others else ""
    return f"{finding.layer}: {message}{others}."


def measure_of(finding: Finding) -> str:
    """Return what was measured and what it was held against, as the end of a phrase."""
    if finding.check not in CHECKS:
        return ""
    words = f", {CHECKS[finding.check].measure}: {real(finding.measured)}"
    return words if finding.threshold is None else f"{words}, threshold {finding.threshold:g}"


def verdict_lines(health: Health, width: int | None, ascii: bool = False) -> list[Text]:
    """Return how many findings there are of each level, and what could not be checked."""
    counts = [sum(f.level == level for f in health.findings) for level in LEVELS]
    numbers = ", ".join(plural(n, level) for n, level in zip(counts, LEVELS, strict=True))
    style = "green" if health.ok else LOUD if counts[0] else QUIET
    lines = sentence(f"{plural(len(health.checks), 'check')}: {numbers}.", width, ascii, style)
    causes: dict[str, list[str]] = {}
    for name, cause in health.unmade.items():
        causes.setdefault(cause, []).append(name)
    for cause, names in causes.items():
        lines += sentence(f"Not checked: {', '.join(names)} ({cause}).", width, ascii, QUIET)
    return lines
