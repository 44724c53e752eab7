"""Scripts of several processes, started by ``torchrun``: DDP, FSDP2, ranks that end early.

Each launch imports torch twice, so most of these tests are long ones.
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

SCRIPTS = Path(__file__).parent / "scripts"

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
    """Launch a script of this folder in ``work``, plain or with ``ours=[OPTIONS]``."""
    work = tmp_path / "work"
    work.mkdir()

    def start(script: str, *words: object, ours: list[object] | None = None, torchrun=()) -> Launch:
        before = [] if ours is None else ["-m", "hookscope", "run", *ours]
        return Launch(work, bare_environment, *torchrun, *before, SCRIPTS / script, *words)

    return start


def ranks(folder: Path) -> list[TrainingRun]:
    assert [path.name for path in rank_folders(folder)] == ["rank0", "rank1"]
    return [TrainingRun(path) for path in rank_folders(folder)]


def values(run: TrainingRun, key: str, measure: str) -> np.ndarray[Any, Any]:
    return run.curve(key, measure).values


def test_ddp_trains_the_same_and_averaged_gradients_are_measured(launch, tmp_path: Path) -> None:
    plain = launch("distributed_data.py").end()
    ours = launch("distributed_data.py", "--gradients", tmp_path, ours=["--every", "1"]).end()
    assert ours[:2] == plain[:2]  # among them the number of collective calls
    assert plain[0] == 0 and len(plain[1]) == 16
    assert ours[2] == (
        "hookscope: recorded 6 steps in runs/distributed_data-1."
        " Next: hookscope report runs/distributed_data-1"
    )
    for rank, run in enumerate(ranks(tmp_path / "work" / "runs" / "distributed_data-1")):
        assert (run.info["rank"], run.info["world_size"]) == (rank, 2)
        [model] = run.info["models"]
        assert (model["name"], model["type"], model["layout"]) == ("net", "Sequential", "whole")
        assert [layer["name"] for layer in model["layers"]][:3] == [".", "0", "0.linear"]
        gradients = torch.load(tmp_path / f"rank{rank}.pt")
        for name in gradients[0]:
            module, _, weight = name.rpartition(".")
            expected = [step[name].norm().item() for step in gradients]
            assert values(run, f"{module}/{weight}.grad", "norm").tolist() == expected
        clipped = values(run, "gradients", "clipped")
        total = values(run, "gradients", "norm")
        assert clipped == pytest.approx(np.maximum(1 - 0.5 / total, 0), abs=1e-4)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])


def test_the_norms_of_sharded_tensors_add_up_to_those_of_the_full_ones(launch, tmp_path) -> None:
    plain = launch("sharded_parameters.py").end()
    folder = tmp_path / "first"
    ours = launch("sharded_parameters.py", ours=["--every", "1", "--output", folder]).end()
    assert ours[:2] == plain[:2]
    assert plain[0] == 0 and len(plain[1]) == 12
    oracle = ["--norms", tmp_path]
    second = tmp_path / "second"
    launch("sharded_parameters.py", *oracle, ours=["--every", "1", "-o", second]).end()
    for path in (folder, second):
        for run in ranks(path):
            [model] = run.info["models"]
            assert (model["type"], model["layout"]) == ("Net", "sharded")
            assert {layer["type"] for layer in model["layers"]} == {
                *("Net", "Linear", "ModuleList", "Sequential", "Tanh")
            }
            assert model["parameters"] == 255
    norms = torch.load(tmp_path / "rank0.pt")
    for name in norms[0]:
        module, _, weight = name.rpartition(".")
        for n, what in enumerate((".grad", "", ".update")):
            parts = [
                values(run, f"{module}/{weight}{what}", "norm")
                for run in ranks(second)
                if any(series.key == f"{module}/{weight}{what}" for series in run.names)
            ]
            assert len(parts) == (1 if module == "head" else 2)
            expected = [step[name][n].item() for step in norms]
            assert np.sqrt(np.square(parts).sum(axis=0)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("script", ["distributed_data.py", "sharded_parameters.py"])
def test_a_rank_that_dies_ends_the_launch_as_without_us(launch, tmp_path, script: str) -> None:
    words = ["--steps", "8", "--die-at", "5"]
    plain, ours = (launch(script, *words, ours=more).end() for more in (None, ["--every", "1"]))
    assert ours[0] == plain[0] != 0
    first, second = ranks(tmp_path / "work" / "runs" / f"{Path(script).stem}-1")
    assert second.info["status"] == "running"
    assert first.info["status"] in ("running", "failed")  # torchrun may have ended it first


def test_two_launches_at_once_have_two_folders(launch, tmp_path: Path) -> None:
    launches = [launch("distributed_data.py", "--steps", "2", ours=[]) for _ in range(2)]
    messages = [one.end()[2] for one in launches]
    runs = tmp_path / "work" / "runs"
    assert sorted(os.listdir(runs)) == ["distributed_data-1", "distributed_data-2"]
    for folder in runs.iterdir():
        assert [run.info["steps"] for run in ranks(folder)] == [2, 2]
        assert sum(f"runs/{folder.name}" in text for text in messages) == 1


def test_a_rank_that_never_trains(launch, tmp_path: Path) -> None:
    status, _, messages = launch("distributed_data.py", "--idle", ours=[]).end()
    assert status == 0
    first, second = ranks(tmp_path / "work" / "runs" / "distributed_data-1")
    assert (first.info["steps"], second.info["steps"]) == (6, 0)
    assert "neither backward()" in second.info["unwatched"][0]["reason"]
    assert messages.count("\n") == 0


def test_a_launch_that_torchrun_restarts_has_a_folder_for_each_attempt(launch, tmp_path) -> None:
    folder = tmp_path / "out"
    words = ["--steps", "3", "--die-at", "1", "--only-first-time"]
    status, _, _ = launch(
        *("distributed_data.py", *words),
        ours=["--every", "1", "--output", folder],
        torchrun=["--max-restarts", "1"],
    ).end()
    assert status == 0
    assert ranks(folder)[1].info["status"] == "running"
    assert [run.info["steps"] for run in ranks(folder / "restart1")] == [3, 3]


def test_ddp_around_a_compiled_model_is_watched_without_its_layers(launch, tmp_path) -> None:
    plain = launch("distributed_data.py", "--compile").end()
    ours = launch("distributed_data.py", "--compile", ours=["--every", "1"]).end()
    assert ours[:2] == plain[:2] and plain[0] == 0
    for run in ranks(tmp_path / "work" / "runs" / "distributed_data-1"):
        [model] = run.info["models"]
        assert [layer["name"] for layer in model["layers"]][:3] == [".", "0", "0.linear"]
        assert any("compiled" in entry["reason"] for entry in run.info["unwatched"])
        assert len(values(run, "0.linear/weight.grad", "norm")) == 6
