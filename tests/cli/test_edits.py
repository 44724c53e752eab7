"""Edits from the shell: what they write and report, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import REPO, Run

pytestmark = pytest.mark.slow

SAMPLES = REPO / "sample_models"
TRAINED = f"{SAMPLES}/digits.py:trained"
FIVE = f"{SAMPLES}/five.png"


@pytest.mark.parametrize(
    "model", ["digits.py:trained", "digits_scripted.pt", "digits_exported.pt2"]
)
def test_patching_a_bottleneck_of_a_corrupted_run_restores_the_clean_output(
    run: Run, tmp_path: Path, model: str
) -> None:
    word = f"{SAMPLES}/{model}"
    clean, corrupted, patched = (tmp_path / f"{n}.safetensors" for n in ("clean", "bad", "patched"))
    assert run("capture", word, "--input", FIVE, "-o", clean).rc == 0
    assert run("capture", word, "--shape", "1x1x8x8", "--seed", "7", "-o", corrupted).rc == 0
    words = ("--shape", "1x1x8x8", "--seed", "7", "--edit", f"relu1=patch:{clean}", "--verify")
    done = run("capture", word, *words, "-o", patched)
    assert done.rc == 0, done.stderr
    was, bad, now = (load_file(path)["./output"] for path in (clean, corrupted, patched))
    assert torch.equal(now, was) and not torch.equal(bad, was)
    assert "bit-identical" in done.stdout


def test_the_model_itself_is_named_as_in_tables(run: Run, tmp_path: Path) -> None:
    files = [tmp_path / "dot.safetensors", tmp_path / "model.safetensors"]
    for file, name in zip(files, (".", "(model)"), strict=True):
        words = ("--layer", name, "--edit", f"{name}=scale:2")
        hook = ("--hook", f"{name}={SAMPLES}/own_hook.py:mute")
        done = run("capture", TRAINED, "--input", FIVE, *words, *hook, "-o", file)
        assert done.rc == 0, done.stderr
    dot, model = map(load_file, files)
    assert set(dot) == set(model) == {"./output", "./output.unedited"}
    assert torch.equal(dot["./output"], model["./output"])
    assert dot["./output"][0, 0] == 0
    clean = tmp_path / "clean.safetensors"
    assert run("capture", TRAINED, "--input", FIVE, "-o", clean).rc == 0
    assert torch.equal(dot["./output"][:, 1:], 2 * load_file(clean)["./output"][:, 1:])
    assert "./output" in run("show", files[0], "(model)").stdout


def test_the_file_that_a_patch_reads_is_not_replaced(run: Run, tmp_path: Path) -> None:
    assert run("capture", TRAINED, "--input", FIVE, cwd=tmp_path).rc == 0
    [file] = tmp_path.glob("*.safetensors")
    before = file.read_bytes()
    done = run("capture", TRAINED, "--edit", f"relu1=patch:{file}", cwd=tmp_path)
    assert done.rc == 2
    assert "is an input" in done.stderr
    assert file.read_bytes() == before


def test_an_edited_run_tells_what_it_did(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "edited.safetensors"
    words = ("--edit", "conv1[0-12]=zero", "--edit", "relu1:1=scale:2", "--compare", "-o", output)
    done = run("capture", TRAINED, "--input", FIVE, *words)
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(x.startswith("conv1") and x.endswith("edited: zero [0-12]") for x in lines)
    assert any(line.startswith("The model's output") for line in lines)
    header = next(line.split() for line in lines if line.startswith("unedited"))
    names = "unedited p unedited logit unedited edited p edited logit edited image"
    assert header == names.split()
    made, clean = load_file(output), tmp_path / "clean.safetensors"
    assert run("capture", TRAINED, "--input", FIVE, "-o", clean).rc == 0
    before = load_file(clean)
    assert torch.equal(made["conv1/output.unedited"], before["conv1/output"])
    assert made["conv1/output"][:, :13].count_nonzero() == 0
    assert torch.equal(made["conv1/output"][:, 13:], before["conv1/output"][:, 13:])
    assert torch.equal(made["relu1/output"], made["relu1/output.unedited"] * 2)
