"""``hookscope sweep`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import REPO, Run

CAPITALS = f"hf:{REPO}/sample_models/capitals"
ITALY = ("--input", "text:the capital of Italy is")
LAYERS = ("--layer", "model.layers.?")


def test_a_fact_is_found_from_the_command_line(run: Run, tmp_path: Path) -> None:
    capture = str(tmp_path / "france.safetensors")
    run("capture", CAPITALS, *LAYERS, "-i", "text:the capital of France is", "-o", capture)
    out = tmp_path / "a.json"
    words = ["sweep", CAPITALS, *LAYERS, *ITALY, "--edit", f"patch:{capture}"]
    words += ["--positions", "all", "--target", " Paris", "--against", " Rome"]

    done = run(*words, "-o", str(out))
    document = json.loads(run(*words, "--json", "--no-output").stdout)

    assert done.rc == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    [cell] = [words for words in lines if words[:1] == ["model.layers.0"] and words[2] == "3"]
    assert cell[3] == "·Italy" and float(cell[4]) > 20
    assert document["command"] == "sweep" and document["finished"]
    assert document["cells"] == json.loads(out.read_text())["cells"]
