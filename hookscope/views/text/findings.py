"""Findings as files for continuous integration: SARIF 2.1.0 and JUnit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from hookscope.files import strict_json
from hookscope.results.health import Finding, Health
from hookscope.specs.health_checks import CHECKS, NOTE, RUN
from hookscope.specs.output_path import REPORT_MARKS
from hookscope.views.text.check import measure_of, told_of
from hookscope.views.text.text import visible

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
RUN_FINDS = "a model that fails while it runs"


def sarif(health: Health) -> str:
    """Return a log of SARIF 2.1.0 with one run: a rule for each check, a result for each finding.

    A layer is a logical location; where the model is a file, that is the place in the sources.
    """
    version = health.metadata.get("versions", {}).get("hookscope", "")
    rules = [
        {"id": name, "shortDescription": {"text": f"Finds {_finds(name)}."}}
        for name in (*health.checks, *health.unmade, RUN)
    ]
    file = _file_of(health)
    driver = {"name": "hookscope", "semanticVersion": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {
                "executionSuccessful": not any(f.check == RUN for f in health.findings),
                "toolExecutionNotifications": [
                    {"level": NOTE, "message": {"text": f"{name} was not checked: {cause}."}}
                    for name, cause in health.unmade.items()
                ],
            }
        ],
        "results": [
            _result(finding, [rule["id"] for rule in rules], file) for finding in health.findings
        ],
    }
    log = {"version": "2.1.0", "$schema": SCHEMA, "runs": [run]}
    return f"{REPORT_MARKS['.sarif']}, {strict_json.dumps(log)[1:]}"


def _result(finding: Finding, rules: list[Any], file: str) -> dict[str, Any]:
    layers = (finding.layer, *finding.others)
    place: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "module"} for name in layers]
    }
    if file:
        place["physicalLocation"] = {"artifactLocation": {"uri": file}}
    text = f"{told_of(finding)} {finding.hint}".strip()
    return {
        "ruleId": finding.check,
        "ruleIndex": rules.index(finding.check),
        "level": finding.level,
        "message": {"text": text},
        "locations": [place],
        "properties": {"measured": finding.measured, "threshold": finding.threshold},
    }


def junit(health: Health) -> str:
    """Return a JUnit report: a test case for each check, failed by its errors and warnings."""
    model = health.metadata.get("model", {}).get("word", "")
    names = [*health.checks, *health.unmade]
    names += [RUN] if any(finding.check == RUN for finding in health.findings) else []
    suite = ElementTree.Element("testsuite", name=visible(f"hookscope check {model}"))
    failed = 0
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", classname="hookscope.check", name=name)
        found = [finding for finding in health.findings if finding.check == name]
        bad = [finding for finding in found if finding.level != NOTE]
        failed += bool(bad)
        if bad:
            first = ElementTree.SubElement(case, "failure", type=bad[0].level)
            first.set("message", visible(told_of(bad[0])))
            first.text = "\n".join(map(_line, bad))
        elif name in health.unmade:
            ElementTree.SubElement(case, "skipped", message=visible(health.unmade[name]))
        notes = [finding for finding in found if finding.level == NOTE]
        if notes:
            ElementTree.SubElement(case, "system-out").text = "\n".join(map(_line, notes))
    suite.set("tests", str(len(names)))
    suite.set("failures", str(failed))
    suite.set("errors", "0")
    suite.set("skipped", str(len(health.unmade)))
    ElementTree.indent(suite)
    return REPORT_MARKS[".xml"] + ElementTree.tostring(suite, encoding="unicode")


def _line(finding: Finding) -> str:
    told = f"{finding.level}: {told_of(finding)}{measure_of(finding)} {finding.hint}"
    return visible(told.strip())


def _finds(name: str) -> str:
    return CHECKS[name].finds if name in CHECKS else RUN_FINDS


def _file_of(health: Health) -> str:
    """The file that the model is from, as a relative URI; empty for one that has none."""
    from urllib.parse import quote

    model: Mapping[str, Any] = health.metadata.get("model", {})
    if model.get("source") not in ("file", "torchscript", "exported"):
        return ""
    word = str(model.get("word", ""))
    path = word.rpartition(":")[0] if ".py:" in word else word
    return quote(path.replace("\\", "/"))


WRITERS: dict[str, Callable[[Health], str]] = {".sarif": sarif, ".xml": junit}
