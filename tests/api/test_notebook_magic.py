"""The cell magic ``%%hookscope`` in IPython."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

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
