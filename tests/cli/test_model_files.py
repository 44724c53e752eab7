"""Scripted, traced and exported files on the command line, with the same words as for a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Run

SCRIPTED, TRACED, EXPORTED = (
    f"sample_models/digits_{name}" for name in ("scripted.pt", "traced.pt", "exported.pt2")
)
FILES = (SCRIPTED, TRACED, EXPORTED)
ORIGINAL = "sample_models/digits.py:trained"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["capture", "grads"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_gives_the_keys_and_values_of_its_model(
    run: Run, repo: Path, tmp_path: Path, command: str, file: str
) -> None:
    kept = []
    for model in (file, ORIGINAL):
        output = tmp_path / f"{len(kept)}.safetensors"
        done = run(command, model, "--shape", "1x1x8x8", "-o", output, cwd=repo)
        assert done.rc == 0, done.stderr
        kept.append(load_file(output))
    ours, original = kept
    assert ours.keys() == original.keys()
    assert all(torch.equal(ours[key], original[key]) for key in original)


@pytest.mark.parametrize("file", FILES)
def test_the_tree_of_a_file_is_that_of_its_model(run: Run, repo: Path, file: str) -> None:
    trees = [run("tree", model, "--json", cwd=repo) for model in (file, ORIGINAL)]
    ours, original = (json.loads(done.stdout)["modules"] for done in trees)
    columns = ("name", "type", "parameters", "trainable", "buffers", "leaf", "depth")
    rows = [[[module[name] for name in columns] for module in tree] for tree in (ours, original)]
    assert rows[0] == rows[1]


@pytest.mark.exhaustive
def test_torch_says_nothing_of_its_own(run: Run, repo: Path) -> None:
    for file in FILES:
        done = run("tree", file, cwd=repo, env={"PYTHONWARNINGS": "always"})
        assert done.stderr.splitlines() == [f"weights: as saved in {file}"]


def test_the_ending_of_a_file_does_not_matter(run: Run, repo: Path, tmp_path: Path) -> None:
    for number, file in enumerate(FILES):
        other = tmp_path / f"model{number}.dat"
        other.write_bytes((repo / file).read_bytes())
        assert run("tree", other).rc == 0
