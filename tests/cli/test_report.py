"""``hookscope report`` of run folders: the name of the page, two runs, ranks, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import hookscope
from hookscope.files.output_path import PAGE_MARK
from tests.run_folders import small_run


def test_the_page_is_named_after_the_folder_and_replaced_without_force(run, tmp_path) -> None:
    work = tmp_path / "work"
    small_run(work / "runs" / "train-1.5")
    for _ in range(2):
        done = run("report", "runs/train-1.5/", cwd=work)
        assert done.rc == 0, done.stderr
    assert "Finished after 20 steps in 1 min 15 s." in done.stdout
    assert "replacing" in done.stderr
    assert (work / "train-1.5.html").read_text(encoding="utf-8").startswith(PAGE_MARK)
    (work / "train-1.5.html").write_text("mine", encoding="utf-8")
    assert run("report", "runs/train-1.5", cwd=work).rc == 2
    assert (work / "train-1.5.html").read_text(encoding="utf-8") == "mine"


def test_a_run_is_reported_as_json(run, tmp_path) -> None:
    work = tmp_path / "work"
    small_run(work / "train-1")
    document = json.loads(run("report", "train-1", "--json", cwd=work).stdout)
    assert (document["file"], document["layers"]) == ("train-1.html", 3)
    assert document["warnings"] == [
        f"{finding.layer}: {finding.message}"
        for finding in hookscope.check(work / "train-1").findings
    ]
    assert document["tensors"] == 3 * 5


def test_of_several_ranks_the_first_is_shown_and_the_next_command_is_said(run, tmp_path) -> None:
    work = tmp_path / "work"
    for rank in range(2):
        small_run(work / "train-1" / f"rank{rank}")
    done = run("report", "train-1", cwd=work)
    assert done.rc == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "the page shows rank0" in text
    assert f"'hookscope report {Path('train-1', 'rank1')}'" in text
    assert "2 ranks" in (work / "train-1.html").read_text(encoding="utf-8")
