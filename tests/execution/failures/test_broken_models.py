"""The mistakes people ask about most: what is said of each is true, and what is proposed helps."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.execution.failures.conftest import MODELS, Commands, Said, load_models

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A broken model, how it is run, and what is to be said.

    ``line`` stands in the user's file and makes the failing call; ``change`` and ``size`` are what
    is proposed, both empty where nothing can be.
    """

    model: str
    options: str
    layer: str
    line: str
    expected: str
    change: str = ""
    size: str = ""

    @property
    def command(self) -> str:
        return f"hookscope capture broken_models.py:{self.model} {self.options} --json"


CASES = [
    Case(
        *("Digits", "--shape 1x1x32x32", "fc1", "return self.fc1(x)"),
        "100 features in the last dimension (in_features=100), got 144.",
        "nn.Linear(144, 10)",
        "1x1x28x28",
    ),
    Case(
        *("Sequence", "--shape 1x3x28x28", "head.1", "return self.head(self.features(x))"),
        "400 features in the last dimension (in_features=400), got 864.",
        "nn.Linear(864, 120)",
    ),
    Case(
        *("TwoWrong", "--shape 1x10", "b", "return self.b(self.a(x))"),
        "30 features in the last dimension (in_features=30), got 20.",
        "nn.Linear(20, 5)",
    ),
    Case(
        *("ByHand", "--shape 2x5x5", ".", "return F.linear(x, self.weight)"),
        "30 columns in the first matrix of a product, because the second has 30 rows, got 25.",
        size="2x5x6",
    ),
    Case(
        *("Channels", "--shape 1x1x16x16", "stem", "return self.stem(x)"),
        "3 channels in dimension 1, got 1.",
        "nn.Conv2d(1, 8, 3)",
        "1x3x16x16",
    ),
    Case(
        *("Inner", "--shape 1x1x16x16", "second"),
        "return self.second(torch.relu(self.first(x)))",
        "16 channels in dimension 1 (in_channels=16), got 8.",
        "nn.Conv2d(in_channels=8, out_channels=4, kernel_size=3)",
    ),
    Case(
        *("Deep", "--shape 1x1x20x20", "convs.3", "x = conv(x)"),
        "a size of at least the kernel's 3x3, got 1x1.",
        size="1x1x32x32",
    ),
    Case(
        *("Pools", "--shape 1x1x6x6", "pool", "return self.pool(x)"),
        "a size of at least the kernel's 8x8, got 6x6.",
        size="1x1x8x8",
    ),
    Case(
        *("Normed", "--shape 1x3x8x8", "bn", "return self.bn(self.conv(x))"),
        "32 channels in dimension 1 (num_features=32), got 16.",
        "nn.BatchNorm2d(16)",
    ),
    Case(
        *("LayerNormed", "--shape 1x3x8", "norm", "return self.norm(self.embed(x))"),
        "16 in the last dimensions (normalized_shape), got 24.",
        "nn.LayerNorm(24)",
    ),
    Case(
        *("Grouped", "--shape 1x3x8x8", "norm", "return self.norm(self.conv(x))"),
        "32 channels in dimension 1 (num_channels=32), got 16.",
        "nn.GroupNorm(4, 16)",
    ),
    Case(
        *("Words", "--input ints:1x5:19-20", "embed", "return self.out(self.embed(ids + 0))"),
        "The embedding has 10 rows, but the input contains 19. Give numbers from 0 to 9.",
        "nn.Embedding(20, 4)",
    ),
    Case(
        *("FloatWords", "--input ints:1x5:0-9", "embed", "return self.embed(ids / 1)"),
        "indices of dtype int64 or int32, such as ids.long(), got float32.",
    ),
    Case(
        *("Recurrent", "--shape 1x5x8", "lstm", "return self.lstm(x)[0]"),
        "10 features in the last dimension (input_size=10), got 8.",
        "nn.LSTM(8, 20, batch_first=True)",
        "1x5x10",
    ),
    Case(
        *("Gated", "--shape 1x1x8x8", "gru", "return self.gru(x)[0]"),
        "2 or 3 dimensions, got 4 (1x1x8x8).",
        size="1x8x8",
    ),
    Case(
        *("Attends", "--shape 1x5x8", "attention", "return self.attention(x, x, x)[0]"),
        "16 features in the last dimension of query (embed_dim=16), got 8.",
        size="1x5x16",
    ),
    Case(
        *("Upward", "--shape 1x4x6x6", "up", "return self.up(x)"),
        "8 channels in dimension 1, got 4.",
        "nn.ConvTranspose2d(4, 4, 2)",
    ),
    Case(
        *("Double", "--shape 1x4", "fc", "return self.fc(x.double())"),
        "float32, the dtype of its parameters, got float64. Convert one of them:"
        " x.to(torch.float32), or layer.to(torch.float64).",
    ),
    Case(
        *("Whole", "--shape 1x4", "fc", "return self.fc(x.long())"),
        "float32, the dtype of its parameters, got int64: x.to(torch.float32).",
    ),
    Case(
        *("Elsewhere", "--shape 1x4", "fc", 'return self.fc(x.to("meta"))'),
        "tensors on cpu, the device of its parameters, got one on meta.",
    ),
    Case(
        *("NoBatch", "--shape 1x8x8", "fc", "return self.fc(torch.flatten(self.conv(x), 1))"),
        "72 features in the last dimension (in_features=72), got 36.",
        "nn.Linear(36, 10)",
        "1x1x8x8",
    ),
    Case(
        *("Positions", "--shape 1x20x4", ".", "return x + self.positions", ""),
        size="1x16x4",
    ),
    Case(
        *("Twice", "--shape 1x6", "fc", "return self.fc(x)"),
        "6 features in the last dimension (in_features=6), got 4.",
    ),
    Case(
        *("Views", "--shape 1x1x10x10", ".", "return self.fc(x.view(-1, 144))", ""),
        size="1x1x8x8",
    ),
    Case(
        *("Long", "--shape 1x4", "last", "return self.last(x)"),
        "5 features in the last dimension (in_features=5), got 4.",
        "nn.Linear(4, 1)",
    ),
    Case(
        *("Catches", "--shape 1x4", "last", "return self.last(x)"),
        "7 features in the last dimension (in_features=7), got 3.",
        "nn.Linear(3, 1)",
    ),
    Case(
        *("OwnLayer", "--shape 1x5x2", "wide", "return super().forward(x.flatten(1))"),
        "12 columns in the first matrix of a product, because the second has 12 rows, got 10.",
        size="1x6x2",
    ),
    Case(
        *("InList", "--shape 1x6", "layers.1", "x = layer(x)"),
        "9 features in the last dimension (in_features=9), got 8.",
        "nn.Linear(8, 6)",
    ),
    Case(
        *("built", "--shape 1x1x8x8", "2", ""),
        "123 features in the last dimension (in_features=123), got 144.",
        "nn.Linear(144, 10)",
    ),
]


@pytest.fixture(scope="module")
def said(commands: Commands) -> dict[str, Said]:
    """What is said of each model."""
    answers = commands(*(case.command for case in CASES))
    return {case.model: answer for case, answer in zip(CASES, answers, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_a_failure_names_layer_line_and_what_was_expected(case: Case, said) -> None:
    answer = said[case.model]
    assert answer.status == 1
    assert "Traceback" not in answer.stderr
    document = json.loads(answer.stdout)
    failure = document["failure"]
    assert failure["failed"]["layer"] == case.layer
    assert document["failed"] == answer.line("Error")
    assert failure["expected"] == answer.line("Expected") == case.expected
    assert failure["source"] == case.line
    if not case.line:
        assert answer.line("Line") == ""
        return
    lines = MODELS.read_text().splitlines()
    assert lines[failure["line"] - 1].strip() == case.line
    place = f"broken_models.py:{failure['line']}, in forward: {case.line}"
    assert answer.line("Line") == place


def by_hand(case: Case) -> tuple[list[tuple[Any, ...]], list[tuple[int, ...]]]:
    """The calls that return, by hooks written here, and the shapes that the failing layer gets."""
    made = getattr(load_models(), case.model)().eval()
    calls: list[tuple[Any, ...]] = []
    numbers: dict[str, int] = {}
    begun: list[tuple[str, list[tuple[int, ...]]]] = []

    def before(name: str, module: nn.Module, args: Any) -> None:
        begun.append((name, [tuple(a.shape) for a in args]))

    def after(name: str, module: nn.Module, args: Any, output: Any) -> None:
        numbers[name] = numbers.get(name, 0) + 1
        parts = output if isinstance(output, tuple) else (output,)
        shapes = [
            [tuple(t.shape) for t in ts if isinstance(t, torch.Tensor)] for ts in (args, parts)
        ]
        calls.append((name, numbers[name], *shapes))

    for name, module in made.named_modules():
        module.register_forward_pre_hook(lambda m, a, n=name or ".": before(n, m, a))
        module.register_forward_hook(lambda m, a, o, n=name or ".": after(n, m, a, o))
    option, value = shlex.split(case.options)
    sizes = tuple(map(int, value.removeprefix("ints:").partition(":")[0].split("x")))
    given = torch.randn(sizes) if option == "--shape" else torch.full(sizes, 19)
    with pytest.raises((RuntimeError, ValueError, IndexError)), torch.no_grad():
        made(given)
    return calls, next(shapes for name, shapes in reversed(begun) if name == case.layer)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_the_calls_that_ran_are_those_that_hooks_by_hand_see(case: Case, said) -> None:
    failure = json.loads(said[case.model].stdout)["failure"]
    ran = [
        (
            call["layer"],
            call["call"],
            [tuple(tensor["shape"]) for tensor in call["inputs"]],
            [tuple(tensor["shape"]) for tensor in call["outputs"]],
        )
        for call in failure["ran"]
    ]
    calls, inputs = by_hand(case)
    assert failure["complete"]
    assert ran == calls
    assert [tuple(tensor["shape"]) for tensor in failure["failed"]["inputs"]] == inputs


CHANGE = re.compile(
    r"in (?P<file>\S+), line (?P<line>\d+), write (?P<new>.+) instead of (?P<old>.+)\. Checked"
)
SIZE = re.compile(r"use an input of (?P<size>[\dx]+)")


def proposals(answer: Said) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    """The change of the file and the size of an input that are proposed."""
    fixes = [fix for label in ("Fix", "Or") if (fix := answer.line(label))]
    assert all(". Checked: the model then runs." in fix for fix in fixes)
    return tuple(  # type: ignore[return-value]
        next((found for fix in fixes if (found := pattern.match(fix))), None)
        for pattern in (CHANGE, SIZE)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_what_is_proposed_is_what_is_expected(case: Case, said) -> None:
    change, size = proposals(said[case.model])
    assert (change["new"] if change else "") == case.change
    assert (size["size"] if size else "") == case.size


def changed(text: str, change: re.Match[str]) -> str:
    """The file with the call on that line written as proposed."""
    number = int(change["line"])
    [call] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and node.lineno == number
        and ast.unparse(node) == change["old"]
    ]
    assert call.end_lineno == number
    lines = text.splitlines()
    line = lines[number - 1]
    lines[number - 1] = line[: call.col_offset] + change["new"] + line[call.end_col_offset :]
    return "\n".join(lines)


def test_a_model_runs_once_it_is_changed_as_proposed(said, commands, tmp_path: Path) -> None:
    text, lines = MODELS.read_text(), []
    for case in CASES:
        change, size = proposals(said[case.model])
        if change:
            (tmp_path / f"{case.model}.py").write_text(changed(text, change))
            lines.append(f"hookscope capture {case.model}.py:{case.model} {case.options}")
        if size:
            (tmp_path / "broken_models.py").write_text(text)
            model = f"broken_models.py:{case.model}"
            lines.append(f"hookscope capture {model} --shape {size['size']}")
    answers = commands(*lines, cwd=tmp_path)
    failed = {line: x.stderr for line, x in zip(lines, answers, strict=True) if x.status}
    assert failed == {}
    assert len(lines) > 20
