"""The cell magic ``%%hookscope`` in IPython."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hookscope.specs.program_options import MODES

pytest.importorskip("IPython")


@pytest.fixture
def shell() -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext hookscope")
    shell.run_cell("import torch; net = torch.nn.Sequential(torch.nn.Linear(2, 2))")
    yield shell
    InteractiveShell.clear_instance()


def run(shell: Any, line: str) -> Any:
    """Run a cell below ``%%hookscope LINE``; return what the notebook would show."""
    return shell.run_cell_magic("hookscope", line, "done = 5; net(torch.ones(1, 2));")


def test_a_cell_is_run_and_its_layers_are_returned(shell: Any) -> None:
    capture = run(shell, "capture --layer 'net.*' --what input,output")
    assert list(capture) == ["net.0/input.0", "net.0/output"]
    assert shell.user_ns["done"] == 5
    assert "<td" in capture._repr_html_()
    assert [model.name for model in run(shell, "list").models] == ["net"]
    assert [event.module for event in run(shell, "trace").events] == ["net", "net.0"]


def test_the_result_is_the_value_of_the_cell(shell: Any) -> None:
    shell.run_cell("x = torch.ones(1, 2)\nexpected = net(x)")
    shell.run_cell("%%hookscope capture\ny = net(x)")
    assert shell.run_cell("torch.equal(_['net.0'], expected)").result is True


def test_a_cell_writes_its_result(shell: Any, tmp_path: Path) -> None:
    for mode in ("list", "check", "trace"):
        run(shell, f"{mode} -o {tmp_path}/{mode}.json")
    assert json.loads((tmp_path / "list.json").read_text())["models"][0]["calls"] == 1
    assert {file.name for file in tmp_path.iterdir()} == {"list.json", "check.json", "trace.json"}
    run(shell, f"capture -o {tmp_path}/net.safetensors")
    assert list(load_file(tmp_path / "net.safetensors")) == ["net.0/output", "net/output"]


def test_a_wrong_line_is_refused_and_the_cell_is_not_run(shell: Any) -> None:
    from hookscope.errors import RequestError

    for line, message in (
        ("captur", "Did you mean capture"),
        ("capture --layr fc", "No such option"),
        ("list --calls 3", "--calls has no effect with --list"),
    ):
        with pytest.raises(RequestError, match=message):
            run(shell, line)
    assert "done" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("captur", "net(x)", "Did you mean capture?"),
        ("tree", "net(x)", "!hookscope tree"),
        ("", "net(x)", "empty"),
        ("capture --layr fc", "net(x)", "Did you mean --layer?"),
        ("capture --layer 'fc", "net(x)", "No closing quotation"),
        ("list", "net(x", "SyntaxError: '(' was never closed, in line 1"),
        ("list", "net(x)\ny = = 1", "SyntaxError: invalid syntax, in line 2"),
        ("capture --hook none.py:f", "net(x)", "none.py"),
        ("list --calls 3", "net(x)", "--calls"),
        ("capture -o none/x.safetensors", "y = net(x)", "output folder none"),
        ("capture", "import hookscope; hookscope.load('none.safetensors')", "none.safetensors"),
        *((mode, "net(x.T)", "net.0 (Linear) raised RuntimeError: mat1") for mode in MODES),
    ],
)
def test_a_mistake_is_a_sentence_and_fails_the_cell(
    shell: Any, capsys: pytest.CaptureFixture[str], line: str, cell: str, said: str
) -> None:
    shell.run_cell("x = torch.ones(1, 2)")
    capsys.readouterr()
    ran = shell.run_cell(f"%%hookscope {line}\n{cell}")
    assert not ran.success  # so that no later cell of the notebook is run
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Error: ") and said in " ".join(lines)
    assert len(lines) <= 3
    shell.run_cell("%tb")
    assert "Traceback" in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["1 / 0", "nothing"])
def test_an_error_of_other_code_is_shown_as_without_the_magic(
    shell: Any, capsys: pytest.CaptureFixture[str], cell: str
) -> None:
    shown = []
    for text in (cell, f"%%hookscope capture\n{cell}"):
        assert not shell.run_cell(text).success
        shown.append(capsys.readouterr().out.splitlines()[-1])
        assert not shell.custom_exceptions  # those of the user are as before
    assert shown[0] == shown[1]


def test_the_help_is_printed_and_nothing_is_run(shell: Any, capsys) -> None:
    assert run(shell, "capture --help") is None
    assert "--stop-after" in capsys.readouterr().out
    assert "done" not in shell.user_ns
