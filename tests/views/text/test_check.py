"""Findings in phrases, and as files."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from hookscope.results.health import Finding, Health
from hookscope.specs.checks import WARNING
from hookscope.views.health import check_lines, junit_report, measurement_text, sarif_report
from hookscope.views.text.text_table import PIPE
from tests.views.text import samples


@pytest.mark.parametrize(
    ("check", "measured", "threshold", "step", "parts"),
    [
        ("nan", 67_800, 0, None, ["67,800 NaN", "(none allowed)"]),
        ("dead", 1.0, 0.5, None, ["100% of", "(threshold 50%)"]),
        ("saturated", 0.9995, 0.9, None, ["99.95% of", "(threshold 90%)"]),
        ("vanishing", 1.5e-7, 1e-4, None, ["1.500e-07", "(threshold 0.0001)"]),
        ("unused", 2, 0, None, ["2 parameters ", "(none allowed)"]),
        ("unused", 8, 5, 3, ["8 sampled steps", "(threshold 5)"]),  # of a run
        ("frozen", 1, None, None, ["1 frozen parameter"]),
        ("devices", 2, 1, None, ["2 devices", "(threshold 1)"]),
    ],
)
def test_the_measurement_is_a_phrase(check, measured, threshold, step, parts) -> None:
    text = measurement_text(Finding(check, WARNING, "a", "odd", measured, threshold, step=step))
    assert [part for part in parts if part not in text] == []
    assert ("(" in text) == (threshold is not None)


@pytest.mark.parametrize(("check", "shown"), [("dead", False), ("vanishing", True), ("nan", True)])
def test_the_loss_is_shown_where_a_check_uses_it(check: str, shown: bool) -> None:
    loss = {"name": "projection", "value": 1.0, "formula": "r x"}
    lines = check_lines(Health((), (check,), {}, {}, {"loss": loss}), PIPE)
    assert any("Loss projection" in line.plain for line in lines) is shown


def test_the_repr_counts_as_a_sentence_does() -> None:
    shown = repr(samples.health())
    assert shown == "<Health of a b.py:Net: 1 error, 1 warning, 1 note; 3 checks>"


def test_files_hold_any_name() -> None:
    suite = ElementTree.fromstring(junit_report(samples.health()))
    assert [case.get("name") for case in suite] == ["nan", "tied", "vanishing", "unused"]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    [run] = json.loads(sarif_report(samples.health()))["runs"]
    places = [result["locations"][0] for result in run["results"]]
    assert [len(place["logicalLocations"]) for place in places] == [1, 5, 1]
    assert {place["physicalLocation"]["artifactLocation"]["uri"] for place in places} == {
        "a%20b.py"
    }


def test_findings_never_hold_a_number_that_strict_parsers_refuse() -> None:
    odd = Finding("exploding", "warning", "a", "it explodes", float("inf"), 1e4)
    report = sarif_report(Health((odd,), ("exploding",), {}, {}, {}))
    [run] = json.loads(report, parse_constant=pytest.fail)["runs"]
    assert run["results"][0]["properties"]["measured"] == "Infinity"
