"""A failed forward pass: where it is shown, what it leaves alone, and where less is known."""

from __future__ import annotations

import json
import linecache
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError
from hookscope.execution.failures.expectations import kind_of, mismatches
from tests.execution.failures.broken_models import TEXT
from tests.execution.failures.conftest import Commands
from tests.processes import COMMAND, in_terminal
from tests.zoo import Module


def failing(model: Any, verb: Any = hookscope.capture, **options: Any) -> ForwardError:
    with pytest.raises(ForwardError) as caught:
        verb(model, **options)
    return caught.value


# Where it is shown

ROWS = """\
layer   type                      input      output     dtype    note
conv1   Conv2d(1, 4, 3x3)         1x1x32x32  1x4x30x30  float32  -
pool    MaxPool2d(2x2, stride 2)  1x4x30x30  1x4x15x15  float32  -
conv2   Conv2d(4, 4, 3x3)         1x4x15x15  1x4x13x13  float32  -
pool:2  MaxPool2d(2x2, stride 2)  1x4x13x13  1x4x6x6    float32  -
fc1     Linear(100, 10)           1x144      -          float32  failed
4 calls returned before fc1 failed.
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_command_that_runs_a_model_shows_the_calls_on_standard_output(commands) -> None:
    digits = "broken_models.py:Digits"
    rest = {"capture": "--layer conv1", "diff": digits, "cam": "--target 1"}
    verbs = ("capture", "grads", "trace", "step", "ablate", "gradcheck", "diff", "cam")
    lines = [f"hookscope {v} {digits} {rest.get(v, '')} --shape 1x1x32x32" for v in verbs]
    for verb, answer in zip(verbs, commands(*lines), strict=True):
        assert answer.status == (2 if verb == "diff" else 1), answer.stderr
        dtype = "float64" if verb == "gradcheck" else "float32"
        assert answer.stdout.replace(dtype, "float32") == ROWS, verb
        assert "nn.Linear(144, 10) instead of nn.Linear(4 * 5 * 5, 10)" in answer.line("Fix")
        assert "--shape 1x1x28x28" in answer.line("Or")


@pytest.mark.slow
def test_a_tree_marks_what_failed_and_what_was_not_reached(commands: Commands) -> None:
    model = "broken_models.py:Catches"
    plain, narrow, data = commands(
        "hookscope tree broken_models.py:TwoWrong --shapes --shape 1x9",
        f"hookscope tree {model} --shapes --shape 1x4 --layer last",
        f"hookscope tree {model} --shapes --shape 1x4 --json",
    )
    assert [answer.status for answer in (plain, narrow, data)] == [1, 1, 1]
    notes = {line.split()[0]: line for line in plain.stdout.splitlines()}
    assert notes["(model)"].endswith("failed inside")
    assert notes["a"].endswith("failed")
    assert notes["b"].endswith("not reached")
    assert [line.split()[0] for line in narrow.stdout.splitlines()[1:-1]] == ["last"]
    document = json.loads(data.stdout)
    assert document["command"] == "tree"
    outputs = {module["name"]: module["run"]["outputs"] for module in document["modules"]}
    assert outputs == {".": [], "tried": [], "used": ["1x3"], "last": []}
    assert document["failure"]["failed"]["layer"] == "last"
    assert [call["layer"] for call in document["failure"]["ran"]] == ["used"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_over_a_dataset_shows_the_calls_of_its_trial_pass(
    commands: Commands, tmp_path: Path
) -> None:
    for number in range(3):
        Image.new("L", (32, 32)).save(tmp_path / f"{number}.png")
    (tmp_path / "net.py").write_text(TEXT)
    [answer] = commands("hookscope extract net.py:Digits --input . -o out/", cwd=tmp_path)
    assert answer.status == 1
    assert answer.stdout == ROWS.replace(" 1x", " 2x")
    assert "nn.Linear(144, 10)" in answer.line("Fix") and "2x1x28x28" in answer.line("Or")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_terminal_shows_the_last_calls_and_all_with_verbose(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "net.py").write_text(TEXT)
    line = (*COMMAND, "capture", "net.py:Long", "--shape", "1x4")
    env = clean_environment | {"NO_COLOR": "1"}
    short = in_terminal(*line, cwd=tmp_path, env=env, size=(24, 80), status=1).decode()
    rows = [line for line in short.splitlines() if "Linear(" in line and line.startswith("l")]
    assert len(rows) == 21 and all(len(row) <= 80 for row in rows)
    assert (rows[0].split()[0], rows[-1].split()[0]) == ("layers.30", "last")
    assert rows[-1].endswith("failed") and "30 calls" in short
    full = in_terminal(*line, "-v", cwd=tmp_path, env=env, size=(24, 40), status=1).decode()
    assert "layers.0 " in full and "30 calls" not in full


@pytest.mark.slow
def test_a_pipe_and_json_have_all_calls(commands: Commands) -> None:
    line = "hookscope capture broken_models.py:Long --shape 1x4"
    rows, data = commands(line, f"{line} --json")
    assert len(rows.stdout.splitlines()) == 53
    assert len(json.loads(data.stdout)["failure"]["ran"]) == 50
    assert rows.stdout.isascii()


@pytest.mark.slow
def test_the_page_shows_what_is_printed(commands: Commands, tmp_path: Path, repo: Path) -> None:
    page = (repo / "docs" / "crash.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "net.py").write_text(code)
    text = page.replace(code, "").partition("The exit status")[0]
    command, rows, error = re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    [answer] = commands(dedent(command).strip(), cwd=tmp_path)
    assert answer.status == 1
    assert answer.stdout == dedent(rows)
    # torch names the operator (addmm) from 2.15 on.
    assert answer.stderr.replace("addmm: ", "").endswith(dedent(error).replace("addmm: ", ""))


# Models from files, whose code is not there


@pytest.mark.slow
def test_scripted_traced_and_exported_models_have_all_but_a_line(
    models, commands, tmp_path: Path
) -> None:
    digits = models.Digits().eval()
    example = torch.zeros(1, 1, 28, 28)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(digits).save(tmp_path / "scripted.pt")
        torch.jit.trace(digits, example).save(tmp_path / "traced.pt")
        words = models.Words().eval()
        exported = torch.export.export(words, (torch.zeros(2, 3, dtype=torch.long),))
        torch.export.save(exported, tmp_path / "words.pt2")
    answers = commands(
        "hookscope capture scripted.pt --shape 1x1x32x32",
        "hookscope capture traced.pt --shape 1x1x32x32",
        "hookscope capture words.pt2 --input ints:2x3:10-20",
        "hookscope tree scripted.pt --shapes --shape 1x1x32x32",
        cwd=tmp_path,
    )
    for answer in answers[:2]:
        assert answer.status == 1
        assert [row.split()[0] for row in answer.stdout.splitlines()[1:]] == [
            *("conv1", "pool", "conv2", "pool:2", "fc1", "4")
        ]
        assert "(in_features=100), got 144" in answer.line("Expected")
        assert "--shape 1x1x28x28" in answer.line("Fix")
        assert answer.line("Line") == answer.line("Or") == ""
    assert answers[2].status == 1
    assert "indices from 0 to 9 (num_embeddings=10)" in answers[2].stderr
    assert "failed inside" in answers[3].stdout


# What is left alone


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Demand that the block changes nothing in a model and in the random generators."""

    def state() -> list[Any]:
        tensors = [t.clone() for t in (*model.parameters(), *model.buffers())]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        modes = [m.training for m in model.modules()]
        numbers = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
        return [tensors, hooks, modes, numbers, [p.grad for p in model.parameters()]]

    before = state()
    yield
    for old, new in zip(before, state(), strict=True):
        for a, b in zip(old, new, strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("verb", [hookscope.capture, hookscope.grads, hookscope.trace])
def test_a_live_model_is_left_as_it_was_and_runs_once(models, verb, capsys) -> None:
    chatty = models.Chatty()
    with unchanged(chatty):
        error = failing(chatty, verb, shape=(3, 4), train=True)
    assert capsys.readouterr().out == "forward of Chatty\n"  # of the user's own call alone
    assert [call.name for call in error.failure.ran] == ["bn", "drop"]
    assert error.failure.ran[0].inputs[0].device == "cpu"
    assert "nn.Linear(4, 1) instead of nn.Linear(5, 1)" in error.failure.fixes[0]


def test_the_exception_has_the_facts_and_its_text_says_them(models) -> None:
    error = failing(models.Digits(), shape=(1, 1, 32, 32), layers=["conv1"])
    failure = error.failure
    assert (error.layer, error.recorded) == ("fc1", 1)
    assert [(c.name, c.outputs[0].shape) for c in failure.ran] == [
        ("conv1", (1, 4, 30, 30)),
        ("pool", (1, 4, 15, 15)),
        ("conv2", (1, 4, 13, 13)),
        ("pool:2", (1, 4, 6, 6)),
    ]
    assert (failure.failed.call, failure.failed.inputs[0].shape) == (1, (1, 144))
    for fact in (failure.expected, failure.source, *failure.fixes):
        # In Python the error names keywords.
        assert fact.replace("--shape 1x1x28x28", 'shape="1x1x28x28"') in str(error)


def test_a_cell_of_a_notebook_has_lines_as_a_file_has() -> None:
    source = """\
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)
"""
    place = "/tmp/ipykernel_1/2.py"  # which is no file: the kernel keeps the text for tracebacks
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    cell: dict[str, Any] = {"nn": nn, "__name__": "__main__"}
    exec(compile(source, place, "exec"), cell)
    failure = failing(cell["Cell"](), shape=(1, 4)).failure
    assert (failure.file, failure.line) == (place, 7)
    assert failure.source == "return self.fc(x)"
    assert f"{place}, line 4" in failure.fixes[0] and "nn.Linear(4, 2)" in failure.fixes[0]


def test_a_file_that_was_changed_meanwhile_is_read_anew(tmp_path: Path) -> None:
    for above in ("", "# A line more.\n"):
        (tmp_path / "net.py").write_text(above + TEXT)
        failure = failing(f"{tmp_path}/net.py:TwoWrong", shape=(1, 10)).failure
        lines = (above + TEXT).splitlines()
        assert lines[failure.line - 1].strip() == failure.source == "return self.b(self.a(x))"
        number = 1 + lines.index("        self.b = nn.Linear(30, 5)")
        assert f"net.py, line {number}, " in failure.fixes[0]


def test_a_layer_whose_parent_does_not_call_it_is_named_without_a_number(models) -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        return self.fc.forward(x)

    failure = failing(Module(forward, fc=nn.Linear(3, 2)), shape=(1, 4)).failure
    assert (failure.failed.layer, failure.failed.call) == ("fc", 0)
    assert failure.source == "return self.fc.forward(x)"
    assert [v.shape for v in failure.variables] == [(1, 4)]


# Where less is known


def test_a_failure_that_does_not_come_again_has_only_what_was_recorded(models) -> None:
    models.Moody.times = 1  # the first call is to fail in a, any copy's in b
    model = models.Moody()
    error = failing(model, shape=(1, 4))
    assert error.layer == "a"
    assert not error.failure.complete
    assert error.failure.ran == error.failure.fixes == ()
    models.Moody.times = 0
    error = failing(model, shape=(1, 4))
    assert error.layer == "b"
    assert [call.layer for call in error.failure.ran] == ["a"]  # it was recorded
    assert error.failure.fixes == ()


def test_nothing_is_tried_beside_other_processes(models, monkeypatch, tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        failure = failing(models.Digits(), shape=(1, 1, 32, 32), layers=["conv1"]).failure
    finally:
        torch.distributed.destroy_process_group()
    assert not failure.complete
    assert failure.fixes == ()
    assert [call.name for call in failure.ran] == ["conv1"]
    assert "in_features=100" in failure.expected


def test_a_layer_made_outside_any_class_is_named_without_a_line() -> None:
    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    [fix] = failing(made, shape=(1, 3, 5)).failure.fixes[:1]
    assert "1 with in_features=15 instead of 12" in fix


@pytest.mark.parametrize(
    ("model", "options", "layer"),
    [
        ("repeated", {"shape": (1, 6)}, "1.fc"),  # one line makes several layers
        ("Digits", {"shape": (1, 1, 32, 32), "edits": ["conv1=zero"]}, "fc1"),
    ],
)
def test_nothing_is_proposed_where_it_would_change_more(
    models_file: Path, model: str, options: dict[str, Any], layer: str
) -> None:
    error = failing(f"{models_file}:{model}", **options)
    assert error.layer == layer
    assert error.failure.complete
    assert error.failure.fixes == ()


def test_a_layer_of_a_library_is_not_to_be_changed() -> None:
    error = failing("resnet18", shape=(1, 1, 64, 64))
    [fix] = error.failure.fixes
    assert "--shape 1x3x64x64" in fix
    assert "torchvision/models/resnet.py:" in error.hint


def test_weights_from_a_file_forbid_another_size(models, models_file, tmp_path: Path) -> None:
    torch.save(models.Digits().state_dict(), tmp_path / "w.pth")
    error = failing(f"{models_file}:Digits", shape=(1, 1, 32, 32), weights=str(tmp_path / "w.pth"))
    [fix] = error.failure.fixes
    assert "--shape" in fix


def test_a_layer_with_a_forward_of_its_own_may_take_anything(models) -> None:
    assert kind_of(models.Wide(12, 2)) == ""
    assert kind_of(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) != ""
    assert mismatches(models.Wide(12, 2), ((torch.zeros(1, 3),), {})) == []


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (nn.Linear(3, 2), torch.zeros(4, 3)),
        (nn.Linear(3, 2), torch.zeros(3)),
        (nn.Conv2d(4, 6, 3, groups=2), torch.zeros(1, 4, 3, 3)),
        (nn.Conv2d(4, 6, 3), torch.zeros(4, 3, 3)),
        (nn.Conv1d(4, 6, 5, padding=1), torch.zeros(1, 4, 3)),
        (nn.Conv1d(4, 6, 5, padding="same"), torch.zeros(1, 4, 1)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), torch.zeros(1, 4, 1, 1)),
        (nn.MaxPool2d(3, padding=1), torch.zeros(1, 1, 1, 1)),
        (nn.AvgPool3d(2), torch.zeros(1, 2, 2, 2)),
        (nn.BatchNorm1d(4), torch.zeros(2, 4)),
        (nn.BatchNorm2d(4, affine=False, track_running_stats=False), torch.zeros(1, 4, 2, 2)),
        (nn.InstanceNorm2d(4), torch.zeros(4, 2, 2)),
        (nn.GroupNorm(2, 4), torch.zeros(1, 4)),
        (nn.LayerNorm((3, 2)), torch.zeros(5, 3, 2)),
        (nn.RMSNorm(4), torch.zeros(5, 4)),
        (nn.Embedding(5, 2), torch.tensor([0, 4])),
        (nn.EmbeddingBag(5, 2), torch.tensor([[0, 4]])),
        (nn.LSTM(3, 2), torch.zeros(4, 3)),
        (nn.GRUCell(3, 2), torch.zeros(3)),
        (nn.Linear(3, 2).double(), torch.zeros(1, 3).double()),
    ],
    ids=str,
)
def test_a_call_that_fits_has_no_mismatch(layer: nn.Module, given: Tensor) -> None:
    layer(given)
    assert mismatches(layer, ((given,), {})) == []
