"""Every line that a sample tells the reader to type does run, and so does the notebook.

By default the first line of each does, and those of the README; the rest are exhaustive tests.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import hookscope
from tests.conftest import REPO, Run

SAMPLES = REPO / "sample_models"


def lines_in(text: str) -> list[str]:
    return re.findall(r"^    hookscope (.+)$", text, flags=re.MULTILINE)


def lines_to_try() -> list[object]:
    """The folder to stand in and the line to type."""
    lines = [(".", line, True) for line in lines_in((SAMPLES / "README.md").read_text("utf-8"))]
    for file in sorted(SAMPLES.glob("*.py")):
        for number, line in enumerate(lines_in(file.read_text("utf-8"))):
            lines.append(("sample_models", line, number == 0))
    return [
        pytest.param(folder, line, marks=() if by_default else pytest.mark.exhaustive)
        for folder, line, by_default in lines
    ]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("folder", "line"), lines_to_try())
def test_line_runs(run: Run, samples_folder: Path, folder: str, line: str) -> None:
    done = run(*shlex.split(line, comments=True), cwd=samples_folder / folder)
    messages = re.search(r"# exit status (\d)$", line)  # one that shows something wrong says so
    assert done.rc == int(messages[1] if messages else 0), done.stderr
    assert done.stdout
    assert "Warning" not in done.stderr


def test_each_model_has_lines_to_try() -> None:
    without = [f.name for f in SAMPLES.glob("*.py") if not lines_in(f.read_text("utf-8"))]
    assert without == ["read_digits.py", "train_digits.py"]


# The notebook


def cells() -> list[dict[str, Any]]:
    document = json.loads((SAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; return the value of its last line, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)  # type: ignore[attr-defined]


def test_the_notebook_has_no_outputs() -> None:
    assert len({cell["id"] for cell in cells()}) == len(cells()) > 5
    assert all((cell["execution_count"], cell["outputs"]) == (None, []) for cell in cells())


@pytest.mark.slow
def test_every_cell_runs_and_shows_its_result(
    samples_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(samples_folder / "sample_models")
    before = {*Path.cwd().iterdir(), Path.cwd() / "__pycache__"}
    namespace: dict[str, Any] = {}
    shown = [run_cell("".join(cell["source"]), namespace) for cell in cells()]
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
    assert {*Path.cwd().iterdir()} <= before
