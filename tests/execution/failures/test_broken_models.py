"""The mistakes people ask about most: what is said of each is true, and what is proposed helps."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.execution.failures.broken_models import CASES, TEXT, Case
from tests.execution.failures.conftest import Commands, Said

pytestmark = pytest.mark.slow
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)


@pytest.fixture(scope="module")
def said(commands: Commands) -> dict[str, Said]:
    """What is said of each model."""
    answers = commands(*(case.command for case in CASES))
    return {case.model: answer for case, answer in zip(CASES, answers, strict=True)}


@each_case
def test_a_failure_names_layer_line_and_what_was_expected(case: Case, said) -> None:
    answer = said[case.model]
    assert answer.status == 1
    assert "Traceback" not in answer.stderr
    document = json.loads(answer.stdout)
    failure = document["failure"]
    assert failure["failed"]["layer"] == case.layer
    assert document["failed"] == answer.line("Error")
    assert failure["expected"] == answer.line("Expected")
    assert bool(case.expected) == bool(failure["expected"])
    for word in case.expected:
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", failure["expected"]), word
    assert failure["source"] == case.line
    if not case.line:
        assert answer.line("Line") == ""
        return
    assert TEXT.splitlines()[failure["line"] - 1].strip() == case.line
    assert answer.line("Line").startswith(f"broken_models.py:{failure['line']}, ")
    assert answer.line("Line").endswith(case.line)


def by_hand(made: nn.Module, case: Case) -> tuple[list[tuple[Any, ...]], list[tuple[int, ...]]]:
    """The calls that return, by hooks written here, and the shapes that the failing layer gets."""
    calls: list[tuple[Any, ...]] = []
    numbers: dict[str, int] = {}
    begun: list[tuple[str, list[tuple[int, ...]]]] = []

    def after(name: str, args: Any, output: Any) -> None:
        numbers[name] = numbers.get(name, 0) + 1
        parts = output if isinstance(output, tuple) else (output,)
        shapes = [
            [tuple(t.shape) for t in ts if isinstance(t, torch.Tensor)] for ts in (args, parts)
        ]
        calls.append((name, numbers[name], *shapes))

    for name, module in made.named_modules():
        module.register_forward_pre_hook(
            lambda m, a, n=name or ".": begun.append((n, [tuple(x.shape) for x in a]))
        )
        module.register_forward_hook(lambda m, a, o, n=name or ".": after(n, a, o))
    option, value = shlex.split(case.options)
    sizes = tuple(map(int, value.removeprefix("ints:").partition(":")[0].split("x")))
    given = torch.randn(sizes) if option == "--shape" else torch.full(sizes, 19)
    with pytest.raises((RuntimeError, ValueError, IndexError)), torch.no_grad():
        made(given)
    return calls, next(shapes for name, shapes in reversed(begun) if name == case.layer)


@each_case
def test_the_calls_that_ran_are_those_that_hooks_by_hand_see(case: Case, said, models) -> None:
    failure = json.loads(said[case.model].stdout)["failure"]

    def shapes(tensors: list[dict[str, Any]]) -> list[tuple[int, ...]]:
        return [tuple(tensor["shape"]) for tensor in tensors]

    ran = [
        (call["layer"], call["call"], shapes(call["inputs"]), shapes(call["outputs"]))
        for call in failure["ran"]
    ]
    calls, inputs = by_hand(getattr(models, case.model)().eval(), case)
    assert failure["complete"]
    assert ran == calls
    assert shapes(failure["failed"]["inputs"]) == inputs


CHANGE = re.compile(r"in \S+, line (?P<line>\d+), write (?P<new>.+) instead of (?P<old>.+?)\. ")
SIZE = re.compile(r"use an .* (?P<size>\d[\dx]+)[.:]")


def proposals(answer: Said) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    """The change of the file and the size of an input that are proposed."""
    fixes = [fix for label in ("Fix", "Or") if (fix := answer.line(label))]
    assert all("Checked" in fix for fix in fixes)
    change, size = (
        next((found for fix in fixes if (found := pattern.match(fix))), None)
        for pattern in (CHANGE, SIZE)
    )
    return change, size


@each_case
def test_what_is_proposed_is_what_is_expected(case: Case, said) -> None:
    change, size = proposals(said[case.model])
    assert (change["new"] if change else "") == case.change
    assert (size["size"] if size else "") == case.size


def changed(change: re.Match[str]) -> str:
    """The file with the call on that line written as proposed."""
    number = int(change["line"])
    [call] = [
        node
        for node in ast.walk(ast.parse(TEXT))
        if isinstance(node, ast.Call)
        and node.lineno == number
        and ast.unparse(node) == change["old"]
    ]
    assert call.end_lineno == number
    lines = TEXT.splitlines()
    line = lines[number - 1]
    lines[number - 1] = line[: call.col_offset] + change["new"] + line[call.end_col_offset :]
    return "\n".join(lines)


def test_a_model_runs_once_it_is_changed_as_proposed(said, commands, tmp_path: Path) -> None:
    (tmp_path / "broken_models.py").write_text(TEXT)
    lines = []
    for case in CASES:
        change, size = proposals(said[case.model])
        if change:
            (tmp_path / f"{case.model}.py").write_text(changed(change))
            lines.append(f"hookscope capture {case.model}.py:{case.model} {case.options}")
        if size:
            model = f"broken_models.py:{case.model}"
            lines.append(f"hookscope capture {model} --shape {size['size']}")
    answers = commands(*lines, cwd=tmp_path)
    failed = {line: x.stderr for line, x in zip(lines, answers, strict=True) if x.status}
    assert failed == {}
    assert len(lines) > 20
