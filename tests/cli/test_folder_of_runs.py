"""A folder of training runs, and several runs at once, in each command that reads runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hookscope
from hookscope.files.output_path import runs_in
from hookscope.stores.runs.run_list import RunList
from tests.conftest import Run
from tests.stores.runs.healthy_run import HealthyRun


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working folder, with runs that are healthy, have a dead layer, and lost their index."""
    folder = tmp_path / "work"
    HealthyRun().write(folder / "runs" / "train-10")
    HealthyRun().plant("relu2/output", "dead", 1, range(9, 40)).write(folder / "runs" / "train-2")
    (folder / "runs" / "notes").mkdir()
    (folder / "runs" / "text.txt").touch()
    return folder


def damage(work: Path) -> None:
    folder = HealthyRun().write(work / "runs" / "train-3")
    (folder / "series.jsonl").write_text("[1]\n")


def test_runs_are_in_the_order_of_their_numbers(work: Path) -> None:
    assert [path.name for path in runs_in(work / "runs")] == ["train-2", "train-10"]
    assert runs_in(work / "runs" / "train-2") == runs_in(work / "absent") == []
    rank = HealthyRun().write(work / "runs" / "ranks" / "rank0")
    assert [path.name for path in runs_in(work / "runs")] == ["ranks", "train-2", "train-10"]
    assert runs_in(rank.parent) == []


def test_show_prints_a_row_for_each_run(run: Run, work: Path) -> None:
    damage(work)
    done = run("show", "runs/")
    assert (done.rc, done.stderr) == (0, "next: hookscope show runs/train-2\n")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["run", "train-2", "train-3", "train-10"]
    losses = hookscope.load(work / "runs" / "train-2").curve("loss", "value").values
    assert rows[1][1:3] == ["finished", "40"]
    expected = [losses[0], losses[-1], losses.min()]
    assert [float(x) for x in rows[1][3:6]] == pytest.approx(expected, rel=1e-5)
    assert "is damaged" in done.stdout.splitlines()[2]
    content = json.loads(run("show", "runs", "--json").stdout)
    healthy = RunList.of(work / "runs").to_json()["runs"][::2]
    assert content["runs"][::2] == json.loads(json.dumps(healthy))
    assert content["runs"][1]["error"] and content["runs"][2]["last_loss"] == float(losses[-1])
    assert run("show", "runs", "--sort", "name").rc == 2
    refused = run("show", "runs", "loss")
    assert refused.rc == 2 and "hookscope show runs/train-2 loss" in refused.stderr


def test_check_names_the_run_of_each_finding(run: Run, work: Path) -> None:
    done = run("check", "runs")
    assert done.rc == 1
    assert done.stdout.startswith("run train-2, relu2, step 9: ")
    assert "13 checks: 0 errors, 1 warning, 0 notes." in done.stdout
    [finding] = hookscope.check(work / "runs").findings
    assert (finding.run, finding.layer) == ("train-2", "relu2")
    content = json.loads(run("check", "runs", "--json").stdout)
    assert [Path(one["folder"]).name for one in content["runs"]] == ["train-2", "train-10"]
    assert run("check", "runs", "--skip", "dead").rc == 0


def test_a_report_names_the_findings_of_each_run(run: Run, work: Path) -> None:
    done = run("report", "runs/train-10", "runs/train-2", "runs/train-10", "-o", "three.html")
    assert done.rc == 0
    assert "B: relu2: " in done.stdout
    assert "A, train-10: Finished after 40 steps" in done.stdout
    assert "C, train-10: Finished" in done.stdout
    page = (work / "three.html").read_text()
    assert '<b>B</b> <a href="#m0l3"><code>relu2</code></a>' in page
    assert run("report", "runs").stdout.splitlines()[1].startswith("A, train-2: Finished")


def test_diff_compares_the_first_run_with_each_of_the_others(run: Run, work: Path) -> None:
    one, two = "runs/train-10", "runs/train-2"
    done = run("diff", one, one, two)
    assert done.rc == 1
    first, second = done.stdout.split(f"A is {one}, B is {two}.\n")
    assert first.startswith(f"A is {one}, B is {one}.\n") and "all values agree" in first
    assert "at step 9: relu2/output, dead" in second
    assert run("diff", one, one, one).rc == 0
    result = hookscope.diff(*(work / path for path in (one, one, two)))
    assert [diff.same for diff in result.diffs] == [True, False] and not result.same
    assert json.loads(run("diff", one, one, two, "--json").stdout)["same"] is False
    done = run("diff", one, two, "resnet18")
    assert done.rc == 2 and "resnet18 is not" in done.stderr


def test_a_plot_of_runs_has_their_numbers_and_marks_what_is_not_finite(work: Path) -> None:
    bad = HealthyRun().plant("loss", "value", float("nan"), range(30, 40))
    bad.write(work / "runs" / "train-11")
    picture = hookscope.plot(work / "runs", "loss")
    [axes] = picture.figure.axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["train-2", "train-10", "train-11", "not finite from step 30"]
    for line, name in zip(axes.lines, labels[:3], strict=False):
        curve = hookscope.load(work / "runs" / name).curve("loss", "value")
        ours = line.get_ydata()
        assert line.get_xdata().tolist() == curve.steps.tolist()
        assert ours[:30].tolist() == curve.values[:30].tolist()
    assert axes.lines[3].get_xdata().tolist() == list(range(30, 40))
    assert picture.kind == "curves"
