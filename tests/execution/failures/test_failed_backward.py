"""A failed backward pass of a model: both lines are named, a change was tried, nothing is left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError
from hookscope.execution.backward_failures.code_sites import CodeSpan
from hookscope.execution.backward_failures.source_patches import (
    SourcePatch,
    StatementChange,
    patched,
)
from tests.training.failing_steps import FORWARDS, NET

MODEL = "import torch, torch.nn.functional as F\nfrom torch import nn\n" + NET.partition("net =")[0]
NOT_TRIED = {"dropout", "out", "weight", "thrown_away"}


def failing(model: object, **options: object) -> ForwardError:
    with pytest.raises(ForwardError) as caught:
        hookscope.grads(model, **options)
    return caught.value


def written(folder: Path, name: str) -> str:
    """Write a model with a ``forward`` of the table; return the text of the file."""
    body = "\n".join(f"        {line}" for line in FORWARDS[name].splitlines())
    text = MODEL.format(forward=body)
    (folder / "net.py").write_text(text)
    return text


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_the_line_is_named_and_a_change_was_tried(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    error = failing("net.py:Net", shape=(5, 4), loss="sum")
    lines = text.splitlines()
    [wanted] = [n for n, line in enumerate(lines, 1) if line.endswith("# here")]
    failure = error.failure
    assert failure.kind == "in-place"
    assert wanted in [line.line for line in failure.lines]
    assert f"net.py:{wanted}" in failure.story[1]
    assert bool(failure.tried) == (name not in NOT_TRIED), failure
    for sentence in failure.explanation():
        assert sentence in error.hint


@pytest.mark.parametrize(
    ("name", "change"),
    [("relu_after_sigmoid", "x = x.relu()"), ("functional_relu_", "x = F.relu(x)")],
)
def test_a_statement_is_changed_to_an_assignment(
    name: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    [tried] = failing("net.py:Net", shape=(5, 4), loss="sum").failure.tried
    assert tried == f"with `{change}` there, the backward pass runs."


def test_a_live_model_is_left_as_it_was_and_runs_once() -> None:
    calls = []

    class Live(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.is_meta)
            return self.act(torch.sigmoid(self.fc(x)))

    model = Live()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    code = Live.forward.__code__
    failure = failing(model, shape=(2, 4), loss="sum").failure
    assert calls[0] is False
    assert all(calls[1:])
    assert "act (`ReLU(inplace=True)`)" in failure.story[1]
    assert failure.tried == () and failure.suggestions  # the code of another is not changed
    assert Live.forward.__code__ is code
    assert (model.act.inplace, nn.ReLU(inplace=True).inplace) == (True, True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.fc.weight.grad is None


@pytest.mark.slow
def test_the_page_and_json_show_what_is_said(run, tmp_path: Path, repo: Path) -> None:
    page = (repo / "docs" / "questions" / "modified-by-an-inplace-operation.md").read_text()
    (tmp_path / "net.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    page = page.partition("```python\n")[0] + page.partition("```python\n")[2].partition("```")[2]
    command, shown, *_ = re.findall(r"(?:^    (?! ).+\n)+", page, re.MULTILINE)
    words = command.split("\n")[0].split()[1:]
    done = run(*words, "--no-output", cwd=tmp_path)
    assert (done.rc, done.stdout) == (1, "")
    assert "".join(line.strip() + "\n" for line in shown.splitlines()) in done.stderr
    data = json.loads(run(*words, "--no-output", "--json", cwd=tmp_path).stdout)
    assert data["failure"]["kind"] == "in-place"
    assert [line["line"] for line in data["failure"]["lines"]][:2] == [13, 14]


def test_a_changed_function_gets_its_code_back(tmp_path: Path) -> None:
    file = tmp_path / "add.py"
    file.write_text("def add(x, y):\n    x += y\n    return x\n")
    made: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), made)
    add = SimpleNamespace(**made).add
    change = StatementChange(CodeSpan(2, 2, 4, 10), instead="x = x + y + 1")
    given = [1]
    with pytest.raises(TypeError), patched([SourcePatch("", str(file), (change,))]):
        assert add(1, 2) == 4
        add(given, "a")
    assert add(1, 2) == 3
    add(given, [2])
    assert given == [1, 2]


def test_a_failure_in_the_forward_pass_is_explained_as_before() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 10))
    error = failing(model, shape=(1, 4))
    assert error.failure.expected.startswith("100 features")
