"""The findings of ``check``: as sentences with a verdict, and as SARIF 2.1.0 and JUnit files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files import strict_json
from hookscope.files.output_path import REPORT_MARKS
from hookscope.files.words import number_text, plural
from hookscope.results.health import Finding, Health
from hookscope.specs.checks import (
    CHECKS,
    ERROR,
    FLOAT16_UNDERFLOW,
    INF,
    LEVELS,
    NAN,
    NOTE,
    RUN,
    RUN_CHECKS,
    SHARES,
    SKIPPED,
    WARNING,
    WEIGHT_CHECKS,
    Check,
)
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, json_document
from hookscope.views.grads import loss_lines
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, group_names, join_names
from hookscope.views.text.text_table import PIPE, TextOptions, join_blocks, sentence

STYLES = {ERROR: ALERT_STYLE, WARNING: NOTICE_STYLE, NOTE: ""}
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
RUN_FINDS = "models that fail while they run"
WHOLE_RUN = "run"  # what a finding is about that concerns no layer


def check_lines(health: Health, options: TextOptions) -> list[Text]:
    """Return the findings, the worst first, and what was checked."""
    findings = [_finding_lines(finding, options) for finding in health.findings]
    of_model = [] if "weights" in health.metadata else [x for x in health.checks if x in CHECKS]
    uses_loss = any(CHECKS[name].backward or name in (NAN, INF) for name in of_model)
    loss = loss_lines(health.metadata, options) if uses_loss else []
    return join_blocks(*findings, loss + verdict_lines(health, options), options=options)


def _finding_lines(finding: Finding, options: TextOptions) -> list[Text]:
    text = finding_text(finding, options)
    measurement = measurement_text(finding)
    details = f"{finding.level} {finding.check}{measurement and f': {measurement}'}"
    style = STYLES[finding.level]
    if options.width is None:
        hint = f" {finding.hint}" if finding.hint else ""
        return sentence(f"{text} [{details}]{hint}", options, style)
    lines = sentence(text, options, style) + sentence(f"{details}.", options, "dim")
    return lines + (sentence(finding.hint, options, "dim") if finding.hint else [])


def finding_text(finding: Finding, options: TextOptions = PIPE) -> str:
    """Return the sentence of a finding, the layer first, then the other layers.

    >>> found = Finding("nonfinite", ERROR, "fc", "NaN", 1, step=7, model="net", ranks=(0, 3))
    >>> finding_text(found)
    'net fc, step 7, ranks 0, 3: NaN.'
    >>> finding_text(Finding("nonfinite", ERROR, "", "NaN", 1, step=7, run="train-2"))
    'run train-2, step 7: NaN.'
    """
    message = finding.message.rstrip(".")
    names = join_names(list(map(layer_text, finding.others)), options)
    others = f"; the same holds for {names}" if names else ""
    return f"{_place_text(finding)}: {message}{others}."


def _place_text(finding: Finding) -> str:
    whole = "" if finding.run else WHOLE_RUN
    layer = layer_text(finding.layer) if finding.layer else whole
    parts = [f"run {finding.run}"] if finding.run else []
    parts += filter(None, [" ".join(filter(None, (finding.model, layer)))])
    parts += [] if finding.step is None else [f"step {finding.step}"]
    if finding.ranks:
        ranks = ", ".join(map(str, finding.ranks))
        parts.append(f"rank{'s' * (len(finding.ranks) > 1)} {ranks}")
    return ", ".join(parts)


def measurement_text(finding: Finding) -> str:
    """Return what was measured and its threshold: ``3 NaN entries (none allowed)``."""
    check = _check_called(finding.check)
    if finding.step is not None:  # of a run, in which a number may count something else
        check = RUN_CHECKS.get(finding.check, check)
    if check is None or (check.named and finding.threshold is None):  # a run was not compared
        return ""
    one, _, several = check.measure.partition("|")
    if finding.check in (*SHARES, SKIPPED, FLOAT16_UNDERFLOW):
        shares = (finding.measured, finding.threshold)
        number, limit = (f"{100 * (share or 0):.4g}%" for share in shares)
    else:
        count = isinstance(finding.measured, int)
        number = f"{finding.measured:,}" if count else number_text(finding.measured)
        limit = f"{finding.threshold or 0:g}"
    text = (one if finding.measured == 1 or not several else several).format(number)
    if finding.threshold is None:
        return text
    return f"{text} ({f'threshold {limit}' if finding.threshold else 'none allowed'})"


def verdict_lines(health: Health, options: TextOptions) -> list[Text]:
    """Return how many findings there are of each level, and what could not be checked."""
    counts = [sum(f.level == level for f in health.findings) for level in LEVELS]
    numbers = ", ".join(plural(n, level) for n, level in zip(counts, LEVELS, strict=True))
    style = "green" if health.ok else ALERT_STYLE if counts[0] else NOTICE_STYLE
    lines = sentence(f"{plural(len(health.checks), 'check')}: {numbers}.", options, style)
    reasons = group_names((reason, name) for name, reason in health.unmade.items())
    for reason, names in reasons.items():
        lines += sentence(f"Not checked: {', '.join(names)} ({reason}).", options, NOTICE_STYLE)
    return lines


def sarif_report(health: Health) -> str:
    """Return a log of SARIF 2.1.0: a rule for each check, a result for each finding."""
    version = health.metadata.get("versions", {}).get("hookscope", "")
    rules = [
        {"id": name, "shortDescription": {"text": f"Finds {_check_purpose(name)}."}}
        for name in (*health.checks, *health.unmade, RUN)
    ]
    file = _model_uri(health)
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
            _sarif_result(finding, [rule["id"] for rule in rules], file)
            for finding in health.findings
        ],
    }
    log = {"version": "2.1.0", "$schema": SARIF_SCHEMA, "runs": [run]}
    return f"{REPORT_MARKS['.sarif']}, {strict_json.dumps(log)[1:]}"


def _sarif_result(finding: Finding, rules: list[Any], file: str) -> dict[str, Any]:
    layers = [name for name in (finding.layer, *finding.others) if name]
    location: dict[str, Any] = {}
    if layers:
        modules = [{"fullyQualifiedName": name, "kind": "module"} for name in layers]
        location["logicalLocations"] = modules
    if file:
        location["physicalLocation"] = {"artifactLocation": {"uri": file}}
    text = f"{finding_text(finding)} {finding.hint}".strip()
    run = {"step": finding.step, "model": finding.model, "ranks": list(finding.ranks)}
    return {
        "ruleId": finding.check,
        "ruleIndex": rules.index(finding.check),
        "level": finding.level,
        "message": {"text": text},
        "locations": [location] if location else [],
        "properties": {
            "measured": finding.measured,
            "threshold": finding.threshold,
            **{name: value for name, value in run.items() if value not in (None, "", [])},
        },
    }


def junit_report(health: Health) -> str:
    """Return a JUnit report: a test case for each check, failed by its errors and warnings."""
    model = health.metadata.get("model", {}).get("spec", "")
    model = health.metadata.get("run", {}).get("folder", model)
    model = health.metadata.get("weights", {}).get("path", model)
    names = [*health.checks, *health.unmade]
    names += [RUN] if any(finding.check == RUN for finding in health.findings) else []
    suite = ElementTree.Element("testsuite", name=visible(f"hookscope check {model}"))
    failed = 0
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", classname="hookscope.check", name=name)
        findings = [finding for finding in health.findings if finding.check == name]
        problems = [finding for finding in findings if finding.level != NOTE]
        failed += bool(problems)
        if problems:
            failure = ElementTree.SubElement(case, "failure", type=problems[0].level)
            failure.set("message", visible(finding_text(problems[0])))
            failure.text = "\n".join(map(_junit_line, problems))
        elif name in health.unmade:
            ElementTree.SubElement(case, "skipped", message=visible(health.unmade[name]))
        notes = [finding for finding in findings if finding.level == NOTE]
        if notes:
            ElementTree.SubElement(case, "system-out").text = "\n".join(map(_junit_line, notes))
    suite.set("tests", str(len(names)))
    suite.set("failures", str(failed))
    suite.set("errors", "0")
    suite.set("skipped", str(len(health.unmade)))
    ElementTree.indent(suite)
    return REPORT_MARKS[".xml"] + ElementTree.tostring(suite, encoding="unicode")


def _junit_line(finding: Finding) -> str:
    measurement = measurement_text(finding)
    parts = (finding_text(finding), measurement and f"{measurement}.", finding.hint)
    return visible(f"{finding.level}: {' '.join(filter(None, parts))}")


def _check_purpose(name: str) -> str:
    check = _check_called(name)
    return check.finds if check else RUN_FINDS


def _check_called(name: str) -> Check | None:
    """The check of a name; where a model and weights have one, its measure is the same."""
    return CHECKS.get(name) or RUN_CHECKS.get(name) or WEIGHT_CHECKS.get(name)


def _model_uri(health: Health) -> str:
    """The file of the model as a relative URI; empty if the model is not from a file."""
    model: Mapping[str, Any] = health.metadata.get("model", {})
    weights: Mapping[str, Any] = health.metadata.get("weights", {})
    if weights:
        return quote(str(weights["path"]).replace("\\", "/"))
    if model.get("source") not in ("file", "torchscript", "exported", "onnx"):
        return ""
    spec = str(model.get("spec", ""))
    path = spec.rpartition(":")[0] if ".py:" in spec else spec
    return quote(path.replace("\\", "/"))


REPORT_WRITERS: dict[str, Callable[[Health], str]] = {".sarif": sarif_report, ".xml": junit_report}

VIEW: View[Health] = View(check_lines, json_document("check"))
