"""``hookscope check`` as a command: exit status, sentences, JSON, SARIF, JUnit."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from hookscope.specs.checks import CHECKS
from tests.conftest import REPO
from tests.model_analysis.health.faulty import FOUND

USUAL = {name for name, check in CHECKS.items() if not check.named}
LEVELS = {"error", "warning", "note", "none"}

FAULTY = f"{REPO}/tests/model_analysis/health/faulty.py"
TEXTS = {
    "log_of_negative": (1, "2: NaN first appears here, in log(): "),
    "dead_relu": (
        1,
        "2.1: all 16 units are dead (always zero). [warning dead: 100% of units are always zero",
    ),
    "frozen": (1, "2: all its parameters (2) are frozen"),
    "tied": (0, "2.0: its parameter is shared with 2.2"),
    "sound": (0, "Loss projection = "),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_the_layer_comes_first_and_the_status_tells(run, name) -> None:
    status, begins = TEXTS[name]
    done = run("check", f"{FAULTY}:{name}", env={"COLUMNS": "200"})
    assert done.rc == status, done.stderr
    assert done.stdout.startswith(begins)
    *_, last = (x for x in done.stdout.splitlines() if not x.startswith("Not checked: "))
    assert re.match(r"1[35] checks: ", last)
    assert "Error" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log_of_negative", "side", "clash", "sound"])
def test_the_document_has_each_finding(run, name) -> None:
    found = FOUND[name]
    done = run("check", f"{FAULTY}:{name}", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"]) == (1, "check")
    seen = [(f["level"], f["check"], f["layer"]) for f in document["findings"]]
    assert seen == found
    assert document["ok"] is (done.rc == 0) is all(level == "note" for level, _, _ in found)
    assert document["thresholds"]["dead"] == 0.5
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_failed_run_leaves_unchecked_is_told(run, tmp_path) -> None:
    done = run("check", f"{FAULTY}:clash", "--json", "-o", "failed.sarif")
    unmade = json.loads(done.stdout)["unmade"]
    assert set(unmade) == {"vanishing", "exploding", "unused", "uncalled"}
    log = json.loads((tmp_path / "work" / "failed.sarif").read_text())
    validate_sarif(log)
    [invocation] = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    assert len(invocation["toolExecutionNotifications"]) == 4


def validate_sarif(log: dict) -> None:
    """What SARIF 2.1.0 requires of what we write: its required properties, ranges and indices."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    for run in log["runs"]:
        rules = run["tool"]["driver"]["rules"]
        assert isinstance(run["tool"]["driver"]["name"], str)
        assert len({rule["id"] for rule in rules}) == len(rules)
        assert all(isinstance(rule["shortDescription"]["text"], str) for rule in rules)
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)
            for notice in invocation["toolExecutionNotifications"]:
                assert notice["message"]["text"] and notice["level"] in LEVELS
        for result in run["results"]:
            assert result["message"]["text"]
            assert result["level"] in LEVELS
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            for place in result["locations"]:
                assert all(one["fullyQualifiedName"] for one in place["logicalLocations"])
                uri = place["physicalLocation"]["artifactLocation"]["uri"]
                assert uri and " " not in uri and "\\" not in uri


@pytest.mark.slow
def test_sarif_has_a_rule_for_each_check_and_a_result_for_each_finding(run, tmp_path):
    done = run("check", f"{FAULTY}:side", "--json", "-o", "found.sarif")
    findings = json.loads(done.stdout)["findings"]
    assert "wrote found.sarif" in done.stderr
    again = run("check", f"{FAULTY}:dead_relu", "--forward-only", "-o", "found.sarif")
    assert "replacing" in again.stderr
    log = json.loads((tmp_path / "work" / "found.sarif").read_text())
    validate_sarif(log)
    [only] = log["runs"]
    assert [r["ruleId"] for r in only["results"]] == ["dead"]
    [place] = only["results"][0]["locations"]
    assert place["logicalLocations"] == [{"fullyQualifiedName": "2.1", "kind": "module"}]
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == FAULTY
    assert {rule["id"] for rule in only["tool"]["driver"]["rules"]} == {*USUAL, "run"}
    assert {f["check"] for f in findings} == {"unused", "uncalled"}


@pytest.mark.slow
def test_junit_has_a_case_for_each_check(run, tmp_path) -> None:
    words = ("-o", "found.xml", "--forward-only", "--skip", "tied")
    assert run("check", f"{FAULTY}:side", *words).rc == 1
    suite = ElementTree.parse(tmp_path / "work" / "found.xml").getroot()
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert suite.tag == "testsuite"
    assert int(suite.get("tests")) == len(cases) == len(USUAL) - 1  # less the skipped one
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert failed == ["uncalled"]
    assert suite.get("failures") == "1"
    skipped = [name for name, case in cases.items() if case.find("skipped") is not None]
    assert skipped == ["vanishing", "exploding", "unused"]
    assert suite.get("skipped") == "3"
    assert cases["uncalled"].find("failure").get("message").startswith("2.never: ")
    assert "2.idle" in cases["uncalled"].find("system-out").text


def test_a_file_that_is_not_ours_stays(run, tmp_path) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    for name in ("found.xml", "found.sarif"):
        (tmp_path / "work" / name).write_text("<mine/>")
        done = run("check", "-o", name)
        assert done.rc == 2
        assert "hookscope" in done.stderr
