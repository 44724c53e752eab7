"""A failed backward pass of a model, NaN in its gradients, and a loss whose chain it has cut.

The line that is to be named has a mark. A change was tried where it could be, and nothing is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, LossError
from hookscope.execution.backward_failures.code_sites import CodeSpan
from hookscope.execution.backward_failures.source_patches import (
    SourcePatch,
    StatementChange,
    patched,
)
from hookscope.results.failure import backward_failure
from tests.training.failing_gradients import NAN_FORWARDS, NAN_WITHOUT_CHANGE
from tests.training.failing_steps import FORWARDS, NET, indented
from tests.zoo import Module

MODEL = "import torch, torch.nn.functional as F\nfrom torch import nn\n" + NET.partition("net =")[0]
NOT_TRIED = {"dropout", "out", "weight", "thrown_away"}
GIVEN: dict[str, Any] = {"shape": (5, 4), "loss": "sum"}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Write the model ``net.py:Net`` with a body of ``forward``; return the line with the mark."""
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> int:
        text = MODEL.format(forward=indented(body, 8))
        (tmp_path / "net.py").write_text(text)
        marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
        return marked[0] if marked else 0

    return write


def failing(model: object, **options: object) -> ForwardError:
    with pytest.raises(ForwardError) as caught:
        hookscope.grads(model, **options)
    return caught.value


def failure_of(model: object, shape: tuple[int, ...] = (5, 4)) -> dict[str, Any]:
    """What the capture of a run with NaN in its gradients knows of them."""
    return hookscope.grads(model, shape=shape, loss="sum").metadata["failure"]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Demand that the block changes neither the model nor the code of its class."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    code = type(model).forward.__code__
    yield
    assert type(model).forward.__code__ is code
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.fc.weight.grad is None
    assert not torch.is_anomaly_enabled()


# In-place changes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_the_line_is_named_and_a_change_was_tried(name: str, written) -> None:
    line = written(FORWARDS[name])
    error = failing("net.py:Net", **GIVEN)
    failure = error.failure
    assert failure.kind == "in-place"
    assert line in [one.line for one in failure.lines]
    assert f"net.py:{line}" in failure.story[1]
    assert bool(failure.tried) == (name not in NOT_TRIED), failure
    for sentence in failure.explanation():
        assert sentence in error.hint
    changes = {"relu_after_sigmoid": "`x = x.relu()`", "functional_relu_": "`x = F.relu(x)`"}
    assert changes.get(name, "") in "".join(failure.tried)


def test_a_live_model_is_left_as_it_was_and_runs_once() -> None:
    calls = []

    class Live(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.is_meta)
            return self.act(torch.sigmoid(self.fc(x)))

    model = Live()
    with unchanged(model):
        failure = failing(model, shape=(2, 4), loss="sum").failure
    assert calls[0] is False
    assert all(calls[1:])
    assert "act (`ReLU(inplace=True)`)" in failure.story[1]
    assert failure.tried == () and failure.suggestions  # the code of another is not changed
    assert (model.act.inplace, nn.ReLU(inplace=True).inplace) == (True, True)


@pytest.mark.slow
def test_the_page_and_json_show_what_is_said(run, tmp_path: Path, repo: Path) -> None:
    page = (repo / "docs" / "questions" / "modified-by-an-inplace-operation.md").read_text()
    before, code, after = re.split(r"```(?:python)?\n", page, maxsplit=2)
    (tmp_path / "net.py").write_text(code)
    command, shown, *_ = re.findall(r"(?:^    (?! ).+\n)+", before + after, re.MULTILINE)
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
    error = failing(nn.Sequential(nn.Flatten(), nn.Linear(100, 10)), shape=(1, 4))
    assert "in_features=100" in error.failure.expected


# Gradients that are not finite


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in NAN_FORWARDS if name != "float16"])
def test_the_line_is_named_where_a_gradient_becomes_nan(name: str, written) -> None:
    line = written(NAN_FORWARDS[name])
    failure = failure_of("net.py:Net")
    assert failure["kind"] == "nan"
    assert f"net.py:{line}" in failure["story"][0]
    assert bool(failure["tried"]) == (name not in NAN_WITHOUT_CHANGE)


@pytest.mark.slow
def test_grads_step_and_json_say_it(run, written, tmp_path: Path) -> None:
    line = written(NAN_FORWARDS["sqrt"])
    words = ("net.py:Net", "--shape", "5x4", "--loss", "sum", "--no-output")
    for command in ("grads", "step"):
        done = run(command, *words, cwd=tmp_path)
        assert done.rc == 0
        assert f"net.py:{line} " in done.stdout
        assert "2 of 4 parameters" in done.stdout  # c has none
        assert "a.bias, a.weight" in done.stdout
    data = json.loads(run("grads", *words, "--json", cwd=tmp_path).stdout)
    assert data["failure"]["lines"][0]["line"] == line


def test_a_story_is_read_from_the_file(written) -> None:
    written(NAN_FORWARDS["power"])
    capture = hookscope.grads("net.py:Net", **GIVEN)
    capture.save("one.safetensors")
    read = hookscope.load("one.safetensors").metadata["failure"]
    assert backward_failure(read) == backward_failure(capture.metadata["failure"])
    assert "PowBackward0" in read["story"][0]


def test_nan_at_the_input_alone_is_told(written) -> None:
    line = written("size = (x * 0).sqrt()  # here\nreturn size + self.a(x)")
    failure = failure_of("net.py:Net")
    assert f"net.py:{line}" in failure["story"][0]
    assert "input" in failure["story"][-1] and "2 parameters" in failure["story"][-1]
    assert "clamp_min" in failure["tried"][0]


def test_a_live_model_with_nan_is_left_as_it_was() -> None:
    model = Module(lambda self, x: (self.fc(x) * 0).square().sum(1).sqrt(), fc=nn.Linear(4, 4))
    with unchanged(model):
        failure = failure_of(model, (2, 4))
    assert "2 of 2 entries" in failure["story"][0]
    assert not failure["tried"] and failure["suggestions"]


def test_a_loss_that_is_nan_itself_is_a_question_to_check() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    failure = failure_of(model, (2, 4))
    assert len(failure["story"]) == 1 and "loss" in failure["story"][0]
    assert "hookscope check" in failure["suggestions"][0]


def test_a_model_with_finite_gradients_runs_as_often_as_before() -> None:
    model, runs = nn.Linear(4, 4), []
    model.register_forward_hook(lambda *_: runs.append(1))
    capture = hookscope.grads(model, shape=(2, 4), loss="sum")
    assert "failure" not in capture.metadata
    assert len(runs) == 2  # one records, one verifies


# A chain that is cut


@pytest.mark.parametrize(
    ("body", "tried"),
    [
        ("x = self.a(x).detach()  # here\nreturn x * 2", True),
        ("with torch.no_grad():\n    x = self.a(x)  # here\nreturn x * 2", True),
        ("return (self.a(x) > 0).float()  # here", False),
    ],
)
def test_a_chain_that_the_model_cuts_is_named(body: str, tried: bool, written) -> None:
    line = written(body)
    failure = failing("net.py:Net", **GIVEN).failure
    assert failure.kind == "no-gradient"
    assert f"net.py:{line} (Net.forward)" in failure.story[0]
    assert bool(failure.tried) == tried


@pytest.mark.parametrize(
    ("body", "why"),
    [("return self.a(x).argmax(1)", "int64"), ("return torch.ones(5, 3)", "parameter")],
)
def test_a_loss_that_cannot_be_is_an_error_of_the_request(body: str, why: str, written) -> None:
    written(body)
    with pytest.raises(LossError, match=why):
        hookscope.grads("net.py:Net", shape=(5, 4), loss="ce")
