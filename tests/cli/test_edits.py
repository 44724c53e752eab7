"""Edits from the shell: what they write and report, and how a wrong one is refused."""

from __future__ import annotations

import json
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
    assert "gives a bit-identical output" in done.stdout


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
    assert "is an input of this command and would be overwritten" in done.stderr
    assert file.read_bytes() == before


def test_an_edited_run_tells_what_it_did(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "edited.safetensors"
    words = ("--edit", "conv1[0-12]=zero", "--edit", "relu1:1=scale:2", "--compare", "-o", output)
    done = run("capture", TRAINED, "--input", FIVE, *words)
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(x.startswith("conv1") and x.endswith("edited: zero [0-12]") for x in lines)
    assert any(line.startswith("The model's output changed by at most") for line in lines)
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


def test_the_json_document_holds_the_effect(run: Run, tmp_path: Path) -> None:
    words = ("--edit", "conv1=zero", "--compare", "--json", "-q", "-o", tmp_path / "x.safetensors")
    document = json.loads(run("capture", TRAINED, *words).stdout)
    assert document["edits"] == [{"edit": "conv1=zero", "changed": ["conv1/output"]}]
    effect = document["effect"]
    assert effect["output"][0]["largest"] > 0
    assert [entry["key"] for entry in effect["drift"]][:2] == ["conv1/output", "relu1/output"]


@pytest.mark.parametrize(
    ("verb", "words", "status", "message"),
    [
        ("capture", ["--edit", "conv1"], 2, "'conv1' is not a valid edit."),
        ("capture", ["--edit", "conv1=zer"], 2, "there is no operation 'zer' for --edit"),
        ("capture", ["--edit", "conv1=reverse"], 2, "It belongs to --grad-edit."),
        ("capture", ["--edit", "nope=zero"], 2, "No layer of"),
        ("capture", ["--edit", "conv1[99]=zero"], 2, "Use channels from 0 to 15."),
        ("capture", ["--edit", "conv1=patch:gone.safetensors"], 2, "there is no file"),
        ("capture", ["--edit", "conv1:2=zero"], 2, "conv1 (Conv2d) was called 1 time"),
        ("capture", ["--compare"], 2, "but this run has none"),
        (
            "capture",
            ["--grad-edit", "conv1=zero"],
            2,
            "--grad-edit is an option of grads, step or run",
        ),
        ("grads", ["--grad-edit", "input:conv1=zero"], 2, "names an input"),
        ("step", ["--grad-edit", "conv1=clip:x"], 2, "'x' is not a number"),
    ],
)
def test_a_wrong_edit_is_refused_with_its_repair(
    run: Run, tmp_path: Path, verb: str, words: list[str], status: int, message: str
) -> None:
    done = run(verb, TRAINED, *words, cwd=tmp_path)
    assert (done.rc, done.stdout) == (status, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.slow
def test_a_file_without_names_of_classes_is_said_to_have_none(run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(3, 4)\n"
    )
    shared = ("capture", "net.py:Net", "--shape", "2x3", "--edit", "(model)=zero", "--no-output")
    note = "no top classes: net.py defines no list 'categories' of their names\n"
    assert note in run(*shared, "--compare", cwd=tmp_path).stderr
