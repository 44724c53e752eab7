"""Every line that a sample's docstring tells the reader to type does run.

By default the first line of each does, and those of the README; the rest are exhaustive tests.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

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
def test_line_runs(run: Run, tmp_path: Path, folder: str, line: str) -> None:
    shutil.copytree(SAMPLES, tmp_path / "sample_models")
    done = run(*shlex.split(line, comments=True), cwd=tmp_path / folder)
    messages = re.search(r"# exit status (\d)$", line)  # one that shows something wrong says so
    assert done.rc == int(messages[1] if messages else 0), done.stderr
    assert done.stdout
    assert "Warning" not in done.stderr


def test_each_model_has_lines_to_try() -> None:
    without = [f.name for f in SAMPLES.glob("*.py") if not lines_in(f.read_text("utf-8"))]
    assert without == ["read_digits.py", "train_digits.py"]
