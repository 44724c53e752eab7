"""The example notebook is valid, runs cell by cell, and each result has a display."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hookscope
from tests.conftest import REPO

NOTEBOOK = REPO / "sample_models" / "first_steps.ipynb"


def cells(kind: str) -> list[str]:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; return the value of its last line, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)  # type: ignore[attr-defined]


def test_it_is_a_notebook_without_outputs() -> None:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"]) == (None, [])


@pytest.mark.slow
def test_every_cell_runs_and_shows_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(REPO / "sample_models", tmp_path / "sample_models")
    monkeypatch.chdir(tmp_path / "sample_models")
    before = sorted(Path.cwd().iterdir())
    namespace: dict[str, Any] = {}
    shown = [run_cell(source, namespace) for source in cells("code")]
    results = [value for value in shown if type(value).__module__.startswith("hookscope.")]
    assert [type(value).__name__ for value in results] == [
        *("ModuleTree", "Capture", "Drawing", "Capture", "Ablation", "Health", "Diff", "Capture"),
        "Report",
    ]
    for value in results:
        html = getattr(value, "_repr_html_", lambda: "")()
        assert "<table" in html or "<p" in html or value._repr_png_()
    assert shown[2] == ((1, 16, 8, 8), (1, 1, 8, 8))
    assert shown[3] == 5
    assert namespace["hookscope"] is hookscope
    kept = [path for path in Path.cwd().iterdir() if path.name != "__pycache__"]
    assert sorted(kept) == [path for path in before if path.name != "__pycache__"]
