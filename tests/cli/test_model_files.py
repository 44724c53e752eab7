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


def test_the_tree_tells_the_source_line_on_request(run: Run, repo: Path) -> None:
    plain, more = run("tree", SCRIPTED, cwd=repo), run("tree", SCRIPTED, "-v", cwd=repo)
    assert "digits.py:" not in plain.stdout
    assert "sample_models/digits.py:" in more.stdout
    assert "torch/nn/modules/conv.py:" in more.stdout


@pytest.mark.parametrize("file", FILES)
def test_shapes_are_told(run: Run, repo: Path, file: str) -> None:
    done = run("tree", file, "--shapes", cwd=repo)
    assert done.rc == 0, done.stderr
    assert "1x16x8x8" in done.stdout


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture", SCRIPTED, "--method", "forwrd"], "no method 'forwrd'"),
        (["capture", SCRIPTED, "--model-arg", "width=3"], "takes no arguments"),
        (["capture", SCRIPTED, "--weights", "default"], "no weights called 'default'"),
        (["capture", EXPORTED, "--shape", "1x1x9x9"], "1x1x8x8"),
        (["capture", EXPORTED, "--train"], "training mode"),
        (["capture", SCRIPTED, "--layer", "conv9"], "conv1"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    run: Run, repo: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run(*arguments, "-o", tmp_path / "x.safetensors", cwd=repo)
    assert done.rc == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_settings_file_cannot_trust_a_program(run: Run, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "hookscope.toml").write_text("[tree]\ntrust = true\n")
    done = run("tree", repo / EXPORTED, cwd=tmp_path)
    assert done.rc == 2
    assert "sets trust, which a project's settings file may not" in done.stderr
    assert run("tree", repo / EXPORTED, "--trust", cwd=tmp_path).rc == 0
