"""Findings in words: the layer first and whole, at every width, and as files."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from hookscope.results.health import Finding, Health
from hookscope.specs.checks import WARNING
from hookscope.views.health import (
    check_lines,
    junit_report,
    measurement_text,
    sarif_report,
)
from hookscope.views.text.text_table import PIPE, TextOptions

LAYER = "stage1.block2.attention.projection"
FOUND = (
    Finding(
        "nan",
        "error",
        LAYER,
        "NaN first appears here, in log(): 1 of 4 entries is NaN",
        1,
        0,
        "Fix.",
    ),
    Finding(
        "vanishing", "warning", "a", "it vanishes", 1e-5, 1e-4, "", ("b", "c", "d", "e\x1b[1m")
    ),
    Finding("tied", "note", "ünïcode", "one tensor", 1, None),
)
HEALTH = Health(
    FOUND,
    ("nan", "tied", "vanishing"),
    {"unused": "no backward pass: --forward-only"},
    {"dead": 0.95},
    {"model": {"spec": "a b.py:Net", "source": "file"}, "versions": {"hookscope": "1"}},
)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal_and_the_layer_is_whole(width: int) -> None:
    lines = [line.plain for line in check_lines(HEALTH, TextOptions(width))]
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"{LAYER}:")
    assert any("the same holds for b, c, d and 1 more" in line for line in lines) or width == 40
    assert "3 checks: 1 error, 1 warning, 1 note." in lines


def test_a_pipe_has_one_finding_a_line_and_all_names() -> None:
    lines = [line.plain for line in check_lines(HEALTH, PIPE)]
    assert lines[0] == (
        f"{LAYER}: NaN first appears here, in log(): 1 of 4 entries is NaN."
        " [error nan: 1 NaN entry (none allowed)] Fix."
    )
    assert r"the same holds for b, c, d, e\x1b[1m." in lines[1]
    assert lines[3:] == [
        "3 checks: 1 error, 1 warning, 1 note.",
        "Not checked: unused (no backward pass: --forward-only).",
    ]


@pytest.mark.parametrize(
    ("check", "measured", "threshold", "text"),
    [
        ("nan", 67_800, 0, "67,800 NaN entries (none allowed)"),
        ("dead", 1.0, 0.5, "100% of units are always zero (threshold 50%)"),
        ("saturated", 0.9995, 0.9, "99.95% of entries are at a bound (threshold 90%)"),
        ("vanishing", 1.5e-7, 1e-4, "1.500e-07 (threshold 0.0001)"),
        ("unused", 2, 0, "2 parameters without a gradient (none allowed)"),
        ("frozen", 1, None, "1 frozen parameter"),
        ("devices", 2, 1, "2 devices (threshold 1)"),
    ],
)
def test_the_measurement_is_a_phrase(check: str, measured: float, threshold: float, text) -> None:
    finding = Finding(check, "error", "a", "odd", measured, threshold)
    assert measurement_text(finding) == text


def test_the_loss_is_shown_where_a_check_uses_it() -> None:
    loss = {"name": "projection", "value": 1.0, "formula": "r x"}
    shown = {
        only: [
            line.plain for line in check_lines(Health((), (only,), {}, {}, {"loss": loss}), PIPE)
        ]
        for only in ("dead", "vanishing", "nan")
    }
    assert shown["dead"] == ["1 check: 0 errors, 0 warnings, 0 notes."]
    assert shown["vanishing"][0] == shown["nan"][0] == "Loss projection = 1.00000; formula r x"


def test_the_repr_counts_as_a_sentence_does() -> None:
    assert repr(HEALTH) == "<Health of a b.py:Net: 1 error, 1 warning, 1 note; 3 checks>"


def test_ascii_is_ascii() -> None:
    assert all(line.plain.isascii() for line in check_lines(HEALTH, TextOptions(80, ascii=True)))


def test_files_hold_any_name() -> None:
    suite = ElementTree.fromstring(junit_report(HEALTH))
    assert [case.get("name") for case in suite] == ["nan", "tied", "vanishing", "unused"]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    [run] = json.loads(sarif_report(HEALTH))["runs"]
    places = [result["locations"][0] for result in run["results"]]
    assert [len(place["logicalLocations"]) for place in places] == [1, 5, 1]
    assert {place["physicalLocation"]["artifactLocation"]["uri"] for place in places} == {
        "a%20b.py"
    }


def test_findings_never_hold_a_number_that_strict_parsers_refuse() -> None:
    odd = Finding("exploding", "warning", "a", "it explodes", float("inf"), 1e4)
    health = Health((odd,), ("exploding",), {}, {}, {})
    [run] = json.loads(sarif_report(health), parse_constant=pytest.fail)["runs"]
    assert run["results"][0]["properties"]["measured"] == "Infinity"


def test_a_run_counts_the_steps_without_a_gradient_and_a_model_the_parameters() -> None:
    of_run = Finding("unused", WARNING, "fc", "no gradient", 8, 5, step=3)
    assert measurement_text(of_run) == "no gradient in 8 sampled steps (threshold 5)"
    of_model = Finding("unused", WARNING, "fc", "no gradient", 2)
    assert measurement_text(of_model) == "2 parameters without a gradient"
