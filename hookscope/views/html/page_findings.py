"""The findings on a page of a run or of weights, each with a link to what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hookscope.files.words import count_text, visible
from hookscope.results.health import Finding
from hookscope.specs.patterns import layer_text

MAX_OTHERS = 8  # further layers of a finding that are named


@dataclass(frozen=True)
class PageFinding:
    """A finding."""

    level: str
    run: str
    layer: str
    link: str
    message: str
    hint: str
    others: str


def page_findings(findings: Sequence[Finding], links: Mapping[str, str]) -> tuple[PageFinding, ...]:
    """Return the findings for a page; ``links`` has the addresses of layers or tensors on it."""
    return tuple(
        PageFinding(
            finding.level,
            finding.run,
            visible(layer_text(finding.layer)) if finding.layer else "",
            links.get(finding.layer, ""),
            visible(finding.message),
            visible(finding.hint),
            _others_text(finding.others),
        )
        for finding in findings
    )


def _others_text(others: Sequence[str]) -> str:
    if not others:
        return ""
    more = f" and {count_text(len(others) - MAX_OTHERS)} more" if len(others) > MAX_OTHERS else ""
    names = ", ".join(visible(layer_text(name)) for name in others[:MAX_OTHERS])
    return f"Also: {names}{more}."
