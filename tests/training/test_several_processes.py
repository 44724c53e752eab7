"""Scripts of several processes, started by ``torchrun``: DDP, FSDP2, ranks that end early.

Each launch imports torch twice, so these tests are long ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookscope.files.output_path import rank_folders
from hookscope.stores.runs.training_run import TrainingRun

SCRIPT = Path(__file__).parent / "scripts" / "ranks.py"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform != "linux", reason="gloo and torchrun"),
]


class Launch:
    """``torchrun`` with two processes, as it runs and once it has ended."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: object) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "2", *map(str, words)),
            ],
            cwd=folder,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, list[str], str]:
        """Wait; return the exit status, the lines of all ranks in order, and the messages."""
        out, err = self._process.communicate(timeout=300)
        caught = [line for line in err.splitlines() if line.startswith("hookscope:")]
        return self._process.returncode, sorted(out.splitlines()), "\n".join(caught)


@pytest.fixture
def launch(tmp_path: Path, bare_environment: dict[str, str]):
    """Launch the script in ``work``, plain or with ``ours=[OPTIONS]``."""
    work = tmp_path / "work"
    work.mkdir()

    def start(*words: object, ours: list[object] | None = None, torchrun=()) -> Launch:
        before = [] if ours is None else ["-m", "hookscope", "run", *ours]
        return Launch(work, bare_environment, *torchrun, *before, SCRIPT, *words)

    return start


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "work" / "runs"


def ranks(folder: Path) -> list[TrainingRun]:
    assert [path.name for path in rank_folders(folder)] == ["rank0", "rank1"]
    return [TrainingRun(path) for path in rank_folders(folder)]


def values(run: TrainingRun, key: str, measure: str) -> np.ndarray[Any, Any]:
    return run.curve(key, measure).values


@pytest.mark.parametrize("options", [[], ["--compile"], ["--sharded"]], ids=" ".join)
def test_each_rank_trains_the_same(launch, runs: Path, options: list[str]) -> None:
    plain = launch(*options).end()
    ours = launch(*options, ours=["--every", "1"]).end()
    assert ours[:2] == plain[:2]  # among them the number of collective calls
    assert plain[0] == 0 and len(plain[1]) == 12
    assert "4 steps" in ours[2] and ours[2].endswith("hookscope report runs/ranks-1")
    for rank, run in enumerate(ranks(runs / "ranks-1")):
        assert (run.info["rank"], run.info["world_size"]) == (rank, 2)
        [model] = run.info["models"]
        layout = "sharded" if "--sharded" in options else "whole"
        assert (model["type"], model["layout"], model["parameters"]) == ("Net", layout, 255)
        assert {layer["type"] for layer in model["layers"]} == {
            *("Net", "Linear", "ModuleList", "Sequential", "Tanh")
        }
        compiled = any("compiled" in entry["reason"] for entry in run.info["unwatched"])
        assert compiled == ("--compile" in options)
        assert len(values(run, "blocks.0.0/weight.grad", "norm")) == 4


@pytest.mark.parametrize("options", [[], ["--sharded"]], ids=" ".join)
def test_the_norms_are_those_of_the_full_averaged_tensors(
    launch, runs: Path, tmp_path: Path, options: list[str]
) -> None:
    """Those of sharded tensors add up to them."""
    launch(*options, "--norms", tmp_path, ours=["--every", "1"]).end()
    norms, other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert norms[0] == other[0]
    for name in norms[0]:
        module, _, weight = name.rpartition(".")
        for n, what in enumerate((".grad", "", ".update")):
            key = f"{module}/{weight}{what}"
            parts = [
                values(run, key, "norm")
                for run in ranks(runs / "ranks-1")
                if any(series.key == key for series in run.names)
            ]
            expected = pytest.approx([step[name][n].item() for step in norms], rel=1e-5)
            if options:
                assert len(parts) == (1 if module == "head" else 2)
                parts = [np.sqrt(np.square(parts).sum(axis=0))]
            assert all(part == expected for part in parts) and parts
    if not options:
        for run in ranks(runs / "ranks-1"):
            clipped, total = (values(run, "gradients", what) for what in ("clipped", "norm"))
            assert clipped == pytest.approx(np.maximum(1 - 0.5 / total, 0), abs=1e-4)


@pytest.mark.parametrize("options", [[], ["--sharded"]], ids=" ".join)
def test_a_rank_that_dies_ends_the_launch_as_without_us(launch, runs: Path, options) -> None:
    words = [*options, "--steps", "8", "--die-at", "5"]
    plain, ours = (launch(*words, ours=more).end() for more in (None, ["--every", "1"]))
    assert ours[0] == plain[0] != 0
    first, second = ranks(runs / "ranks-1")
    assert second.info["status"] == "running"
    assert first.info["status"] in ("running", "failed")  # torchrun may have ended it first


def test_two_launches_at_once_have_two_folders(launch, runs: Path) -> None:
    launches = [launch("--steps", "2", ours=[]) for _ in range(2)]
    messages = [one.end()[2] for one in launches]
    assert sorted(os.listdir(runs)) == ["ranks-1", "ranks-2"]
    for folder in runs.iterdir():
        assert [run.info["steps"] for run in ranks(folder)] == [2, 2]
        assert sum(f"runs/{folder.name}" in text for text in messages) == 1


def test_a_rank_that_never_trains(launch, runs: Path) -> None:
    status, _, messages = launch("--idle", ours=[]).end()
    assert status == 0
    first, second = ranks(runs / "ranks-1")
    assert (first.info["steps"], second.info["steps"]) == (4, 0)
    assert "backward()" in second.info["unwatched"][0]["reason"]
    assert messages.count("\n") == 0


def test_a_launch_that_torchrun_restarts_has_a_folder_for_each_attempt(launch, tmp_path) -> None:
    folder = tmp_path / "out"
    status, _, _ = launch(
        *("--steps", "3", "--die-at", "1", "--only-first-time"),
        ours=["--every", "1", "--output", folder],
        torchrun=["--max-restarts", "1"],
    ).end()
    assert status == 0
    assert ranks(folder)[1].info["status"] == "running"
    assert [run.info["steps"] for run in ranks(folder / "restart1")] == [3, 3]
