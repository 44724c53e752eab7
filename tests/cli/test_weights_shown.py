"""``show``, ``check``, ``plot``, ``filters`` and ``report`` of files of weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import hookscope
from hookscope.stores.weights.weight_set import WeightSet
from tests.conftest import REPO, Run

DIGITS = f"{REPO}/sample_models/digits.safetensors"
COMMANDS = """
import sys
from hookscope.cli.main import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as end:
        assert end.code in (0, 1), (words, end.code)
print("LOADED", sorted({{"torch", "torchvision"}} & set(sys.modules)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights with NaN in one tensor, in the working folder of ``run``."""
    rng = np.random.default_rng(0)
    tensors = {
        "layer.0.weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "layer.0.bias": np.array([0.5, np.nan, -2, 0], np.float32),
        "layer.1.weight": rng.standard_normal((8, 4)).astype(np.float16),
        "steps": np.array(7),
    }
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "a.safetensors", metadata={"epoch": "3", "note": "a test"})
    return folder / "a.safetensors"


def test_the_table_is_made_of_headers(run: Run, file: Path) -> None:
    with file.open("r+b") as stored:  # values that cannot be read
        stored.truncate(file.stat().st_size)
    done = run("show", file.name)
    assert done.rc == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["tensor", "shape", "dtype", "parameters", "bytes", "note"]
    rows = {line.split()[0]: line.split()[1:5] for line in lines[1:5]}
    assert rows == {
        "steps": ["scalar", "int64", "1", "8"],
        "layer.0.bias": ["4", "float32", "4", "16"],
        "layer.0.weight": ["4x3x3x3", "float32", "108", "432"],
        "layer.1.weight": ["8x4", "float16", "32", "64"],
    }
    assert lines[5].startswith(
        "safetensors: 4 tensors, 145 parameters, 520 bytes (float32 448 bytes"
    )
    assert "next: hookscope show a.safetensors" in done.stderr
    assert "epoch" in run("show", file.name, "-v").stdout


def test_one_tensor_is_shown_with_its_values(run: Run, file: Path) -> None:
    done = run("show", file.name, "layer.0.bias")
    assert done.rc == 0
    assert "NaN! 1 of 4" in done.stdout
    assert "[2]                 -2" in done.stdout
    assert done.stdout.endswith("the first is at [1].\n")
    part = run("show", file.name, "layer.0.weight[2,...,0]", "--json")
    [tensor] = json.loads(part.stdout)["tensors"]
    values = hookscope.load(file)["layer.0.weight"]
    assert isinstance(hookscope.load(file), WeightSet)
    assert (tensor["slice"], tensor["shape"]) == ("[2,...,0]", [3, 3])
    assert tensor["stats"]["max"] == values[2, ..., 0].max()
    assert sum(one["count"] for one in tensor["histogram"]) == 9
    assert len(tensor["largest"][0]["index"]) == 4


def test_several_tensors_are_rows_of_a_table(run: Run, file: Path) -> None:
    done = run("show", file.name, "layer", "--sort", "norm", "--top", "2")
    header, *rows = done.stdout.splitlines()
    assert header.split()[:4] == ["tensor", "shape", "dtype", "mean"]
    assert [row.split()[0] for row in rows] == ["layer.0.weight", "layer.1.weight"]
    document = json.loads(run("show", file.name, "layer.*", "--json").stdout)
    assert [t["key"] for t in document["tensors"]] == [
        *("layer.0.bias", "layer.0.weight", "layer.1.weight"),
    ]
    assert "histogram" not in document["tensors"][0]
    assert document["weights"]["metadata"] == {"epoch": "3", "note": "a test"}
    whole = json.loads(run("show", file.name, "--json").stdout)
    assert whole["tensors"] is None
    assert whole["weights"]["tensors"][-1]["name"] == "steps"


def test_check_names_the_tensor_and_fails(run: Run, file: Path) -> None:
    done = run("check", file.name)
    assert done.rc == 1
    assert done.stdout.splitlines()[0].startswith(
        "layer.0.bias: 1 of its 4 entries are NaN. [error nan: 1 NaN entry (none allowed)]"
    )
    assert run("check", file.name, "--skip", "nan").rc == 0
    document = json.loads(run("check", file.name, "--json").stdout)
    assert document["weights"]["kind"] == "safetensors"
    assert document["findings"][0]["layer"] == "layer.0.bias"
    written = run("check", file.name, "-o", "a.sarif")
    assert written.rc == 1
    log = json.loads((file.parent / "a.sarif").read_text())
    [result] = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a.safetensors"
