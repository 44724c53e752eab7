"""NaN in the gradients of a model, and losses whose chain the model has cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, LossError
from hookscope.results.failure import backward_failure
from tests.execution.failures.test_failed_backward import MODEL
from tests.training.failing_gradients import NAN_FORWARDS, NAN_WITHOUT_CHANGE
from tests.training.failing_steps import indented


def written(folder: Path, body: str) -> int:
    """Write a model; return the line with the mark."""
    text = MODEL.format(forward=indented(body, 8))
    (folder / "net.py").write_text(text)
    marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    return marked[0] if marked else 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in NAN_FORWARDS if name != "float16"])
def test_the_line_is_named_where_a_gradient_becomes_nan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = written(tmp_path, NAN_FORWARDS[name])
    monkeypatch.chdir(tmp_path)
    capture = hookscope.grads("net.py:Net", shape=(5, 4), loss="sum")
    failure = capture.metadata["failure"]
    assert failure["kind"] == "nan"
    assert f"net.py:{line}" in failure["story"][0]
    assert bool(failure["tried"]) == (name not in NAN_WITHOUT_CHANGE)


@pytest.mark.slow
def test_grads_step_and_json_say_it(run, tmp_path: Path) -> None:
    line = written(tmp_path, NAN_FORWARDS["sqrt"])
    words = ("net.py:Net", "--shape", "5x4", "--loss", "sum", "--no-output")
    for command in ("grads", "step"):
        done = run(command, *words, cwd=tmp_path)
        assert done.rc == 0
        assert f"net.py:{line} (Net.forward), got a finite gradient" in done.stdout
        assert "2 of 6 parameters" not in done.stdout  # c has none
        assert "2 of 4 parameters have it: a.bias, a.weight" in done.stdout
    data = json.loads(run("grads", *words, "--json", cwd=tmp_path).stdout)
    assert data["failure"]["lines"][0]["line"] == line


def test_a_story_is_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, NAN_FORWARDS["power"])
    monkeypatch.chdir(tmp_path)
    capture = hookscope.grads("net.py:Net", shape=(5, 4), loss="sum")
    capture.save("one.safetensors")
    read = hookscope.load("one.safetensors").metadata["failure"]
    assert backward_failure(read) == backward_failure(capture.metadata["failure"])
    assert "PowBackward0" in read["story"][0]


def test_nan_at_the_input_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = written(tmp_path, "size = (x * 0).sqrt()  # here\nreturn size + self.a(x)")
    monkeypatch.chdir(tmp_path)
    failure = hookscope.grads("net.py:Net", shape=(5, 4), loss="sum").metadata["failure"]
    assert f"net.py:{line}" in failure["story"][0]
    assert failure["story"][-1] == "The input of the model has it. None of 2 parameters has it."
    assert "clamp_min" in failure["tried"][0]


class Root(nn.Module):
    """A live model with an infinite gradient, which a ReLU keeps from its parameters or not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (self.fc(x) * 0).square().sum(1).sqrt()


def test_a_live_model_is_left_as_it_was() -> None:
    model = Root()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    code = Root.forward.__code__
    failure = hookscope.grads(model, shape=(2, 4), loss="sum").metadata["failure"]
    assert "its output is 0 in 2 of 2 entries" in failure["story"][0]
    assert not failure["tried"] and failure["suggestions"]
    assert Root.forward.__code__ is code
    assert model.fc.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.is_anomaly_enabled()


def test_a_loss_that_is_nan_itself_is_a_question_to_check() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    failure = hookscope.grads(model, shape=(2, 4), loss="sum").metadata["failure"]
    assert failure["story"] == ("The loss itself is NaN.",)
    assert "hookscope check" in failure["suggestions"][0]


def test_a_model_with_finite_gradients_runs_as_often_as_before() -> None:
    model = Root()
    model.forward = lambda x: model.fc(x)  # type: ignore[method-assign]
    runs = []
    model.fc.register_forward_hook(lambda *_: runs.append(1))
    capture = hookscope.grads(model, shape=(2, 4), loss="sum")
    assert "failure" not in capture.metadata
    assert len(runs) == 2  # one records, one verifies


@pytest.mark.parametrize(
    ("body", "tried"),
    [
        ("x = self.a(x).detach()  # here\nreturn x * 2", True),
        ("with torch.no_grad():\n    x = self.a(x)  # here\nreturn x * 2", True),
        ("return (self.a(x) > 0).float()  # here", False),
    ],
)
def test_a_chain_that_the_model_cuts_is_named(
    body: str, tried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = written(tmp_path, body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForwardError) as caught:
        hookscope.grads("net.py:Net", shape=(5, 4), loss="sum")
    failure = caught.value.failure
    assert failure.kind == "no-gradient"
    assert f"net.py:{line} (Net.forward)" in failure.story[0]
    assert bool(failure.tried) == tried


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return self.a(x).argmax(1)", "int64"),
        ("return torch.ones(5, 3)", "no parameter reaches it"),
    ],
)
def test_a_loss_that_cannot_be_is_an_error_of_the_request(
    body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LossError, match=why):
        hookscope.grads("net.py:Net", shape=(5, 4), loss="ce")
