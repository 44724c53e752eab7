"""``check`` and ``diff`` on folders of training runs, as commands and as functions."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.stores.runs.healthy_run import HealthyRun


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a healthy run, two with a dead layer, and one of two ranks."""
    folder = tmp_path / "work"
    HealthyRun().write(folder / "good")
    HealthyRun().plant("relu2/output", "dead", 1, range(9, 40)).write(folder / "bad")
    for rank in range(2):
        run = HealthyRun()
        run.info["rank"] = rank
        run.plant("relu2/output", "dead", 1, range(9, 40)).write(folder / "ranks" / f"rank{rank}")
    return folder


def test_check_names_layer_and_step_and_its_status_tells(run, work: Path) -> None:
    done = run("check", "bad")
    assert done.rc == 1
    assert done.stdout.startswith(
        "relu2, step 9: all its units are zero for the whole batch, and stay so."
        " [warning dead: 100% of units are always zero (threshold 50%)] "
    )
    good = run("check", "good")
    assert (good.rc, good.stdout.splitlines()[0]) == (
        0,
        "13 checks: 0 errors, 0 warnings, 0 notes.",
    )
    assert run("check", "ranks").stdout.startswith("relu2, step 9, ranks 0, 1: all")
    assert run("check", "bad", "--skip", "dead").rc == 0
    assert run("check", "good", "--dead", "0.05", "--only", "dead").rc == 1


def test_check_writes_json_sarif_and_junit(run, work: Path) -> None:
    content = json.loads(run("check", "bad", "--json").stdout)
    [finding] = content["findings"]
    assert (content["command"], content["ok"], content["run"]["folder"]) == ("check", False, "bad")
    assert (finding["layer"], finding["step"], finding["ranks"]) == ("relu2", 9, [])
    assert run("check", "ranks", "-o", "found.sarif").rc == 1
    log = json.loads((work / "found.sarif").read_text())
    [result] = log["runs"][0]["results"]
    assert (result["properties"]["step"], result["properties"]["ranks"]) == (9, [0, 1])
    assert log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "dead"
    assert run("check", "bad", "-o", "found.xml").rc == 1
    suite = ElementTree.parse(work / "found.xml").getroot()
    assert suite.get("name") == "hookscope check bad" and suite.get("failures") == "1"


def test_settings_for_all_commands_do_not_concern_a_run(run, work: Path) -> None:
    settings = {"HOOKSCOPE_DEVICE": "cuda", "HOOKSCOPE_MODEL": "resnet50"}
    assert run("check", "good", env=settings).rc == 0
    assert run("diff", "good", "good", env=settings).rc == 0


def test_diff_names_the_first_step_and_layer_and_its_status_tells(run, work: Path) -> None:
    same = run("diff", "good", "good")
    assert same.rc == 0
    assert "40 steps compared (40 of them sampled): all values agree exactly." in same.stdout
    done = run("diff", "good", "bad")
    assert done.rc == 1
    line = "at step 9: relu2/output, dead 0.1 in A and 1 in B."
    assert line in done.stdout
    content = json.loads(run("diff", "good", "bad", "--json").stdout)
    assert (content["same"], content["first"]["step"]) == (False, 9)
    assert content["first_layer"]["layer"] == "relu2"
    assert run("diff", "good", "bad", "--atol", "1").rc == 0
    assert run("diff", "good", "bad", "--layer", "conv*").rc == 0
