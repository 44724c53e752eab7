"""``hookscope extract``, from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Finished
from tests.processes import COMMAND, end_by_signal, in_terminal, run_python, start_python

SMALL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten())
"""


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(SMALL)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(6):
        pixels = np.full((8, 8, 3), i * 40, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


EXTRACT = ("extract", "small.py:small", "--layer", "0", "--input", "photos", "--batch", "2")


@pytest.mark.slow
def test_a_folder_gets_one_row_for_each_input(run, refused, photos) -> None:
    done = run(*EXTRACT, "-o", "features/", "--shard-size", "1", cwd=photos.parent)
    assert done.rc == 0
    assert done.stdout.splitlines() == [
        "layer  type    what    call  rows  shape of a row  dtype",
        "0      Conv2d  output     1     6  4x6x6           float32",
        "6 rows of 1 tensor. Each forward pass stopped after 0.",
    ]
    assert "wrote features/ (3 shards, " in done.stderr
    assert done.stderr.splitlines()[-1] == "next: hookscope show features/"
    said = refused(*EXTRACT, "-o", "features/", "--shard-size", "1", cwd=photos.parent)
    assert "is complete" in said
    assert "--force" in said
    resumed = run(
        *EXTRACT, "-o", "features/", "--shard-size", "1", "--resume", "--json", cwd=photos.parent
    )
    assert "nothing to do: all 6 rows exist" in resumed.stderr
    document = json.loads(resumed.stdout)
    assert (document["rows"], document["rows_now"], document["command"]) == (6, 0, "extract")


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(photos, clean_environment) -> None:
    text = (photos.parent / "small.py").read_text()
    slow = text.replace(
        "return nn.Sequential(",
        "return nn.Sequential(Wait(), ",
    )
    (photos.parent / "small.py").write_text(
        f"{slow}\nimport time\nfrom pathlib import Path\n"
        "class Wait(nn.Module):\n    def forward(self, x):\n"
        "        if len(list(Path('features').glob('rows-*'))) >= 2:\n"
        "            time.sleep(600)  # until Ctrl-C\n"
        "        return x\n"
    )
    words = [word if word != "0" else "1" for word in EXTRACT]
    process = start_python(
        *(*COMMAND, *words, "-o", "features/", "--shard-size", "1", "--batch", "1"),
        cwd=photos.parent,
        env=clean_environment,
        until=lambda: len(list(Path("features").glob("rows-*"))) >= 2,
    )
    done = end_by_signal(process)
    assert done.rc == 130
    assert "in features/" in done.stderr
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(Path("features").glob("rows-*"))) >= 2
    assert not list(Path("features").glob(".rows*"))


def test_a_run_that_cannot_begin_leaves_no_folder(run, photos) -> None:
    words = ("extract", "small.py:small", "--input", "photos", "-o", "deep/out/")
    done = run(*words, "--layer", "nosuch", cwd=photos.parent)
    assert done.rc == 2
    assert "nosuch" in done.stderr
    assert not (photos.parent / "deep").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_terminal_sees_how_far_it_is_and_where_the_time_goes(photos, clean_environment) -> None:
    (photos.parent / "small.py").write_text(
        SMALL.replace("return nn.Sequential(", "return nn.Sequential(Wait(), ")
        + "\nimport time\nclass Wait(nn.Module):\n    def forward(self, x):\n"
        "        time.sleep(1)\n        return x\n"
    )
    pytest.importorskip("pty")
    words = [word if word != "0" else "1" for word in EXTRACT]
    seen = in_terminal(
        *(*COMMAND, *words, "-o", "features/", "--batch", "1"),
        env=clean_environment | {"COLUMNS": "120"},
        stdout=Path(os.devnull),
    )
    assert b"rows/s" in seen
    assert b"decode" in seen and b"forward" in seen and b"write" in seen
    assert b"3/6" in seen


def run_twofold(environment: dict[str, str], *more: str) -> Finished:
    """Run the command in two processes, a batch a shard."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = (*EXTRACT, "--workers", "0", "--shard-size", "1", "-o", "out/", *more)
    return run_python(*torchrun, *COMMAND, *words, env=environment)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_one_of_several_processes_cannot_use_is_no_fault_of_the_others(
    photos, clean_environment
) -> None:
    (photos / "5.png").write_bytes(b"no image")
    done = run_twofold(clean_environment)
    assert done.rc != 0
    assert "5.png'" in done.stderr
    assert "bug in hookscope" not in done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_several_processes_did_is_told_of_all(photos, clean_environment) -> None:
    (photos / "5.png").write_bytes(b"no image")
    done = run_twofold(clean_environment, "--skip-bad", "--json")
    assert done.rc == 0, done.stderr
    assert "1 input" in done.stderr
    assert "rows/s in 2 processes; the first: decode" in done.stderr
    document = json.loads(done.stdout)
    assert (document["rows"], document["rows_now"], document["rows_skipped"]) == (6, 6, 1)


@pytest.mark.slow
def test_a_missing_file_in_a_list_is_skipped_if_asked_for(run, refused, photos) -> None:
    work = photos.parent
    (work / "list.txt").write_text("photos/1.png\nphotos/33.png\nphotos/3.png\n")
    words = ("extract", "small.py:small", "--layer", "0", "--input", "@list.txt", "-o", "features/")
    assert "'photos/33.png'" in refused(*words, cwd=work)
    assert not (work / "features").exists()
    done = run(*words, "--skip-bad", cwd=work)
    assert done.rc == 0, done.stderr
    assert "1 input" in done.stderr
    lines = (work / "features" / "inputs.jsonl").read_text().splitlines()
    table = [json.loads(line) for line in lines]
    assert [line["path"] for line in table] == [f"photos/{i}.png" for i in (1, 33, 3)]
    assert ["No such file" in line.get("skipped", "") for line in table] == [False, True, False]
    done = run(*words, "--skip-bad", "--input", "nosuch.png", "--force", cwd=work)
    assert done.rc == 2
    assert "'nosuch.png'" in done.stderr
