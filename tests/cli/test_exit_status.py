"""How a run ends: its status, its sentence and repair, and never a traceback unless asked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from hookscope.cli import error_report
from hookscope.cli.console import Console
from hookscope.errors import ForwardError, LayerError, StoreError
from tests.conftest import REPO, Finished
from tests.processes import COMMAND, end_by_signal, run_python, start_python

RAISES = """
from torch import nn, zeros
class Net(nn.Module):
    def forward(self, x):
        raise {what}
def example_input():
    return zeros(1)
"""


@pytest.mark.parametrize(
    ("error", "message", "hint", "status"),
    [
        (LayerError("No layer.", "Look."), "No layer.", "Look.", 2),
        (StoreError("Full."), "Full.", "", 1),
        (ForwardError("It broke.", "fc", 3, "Try."), "It broke.", "Try.", 1),
        (click.UsageError("Wrong."), "Wrong.", "See: hookscope --help", 2),
        (MemoryError(), "Out of memory.", "--layer", 1),
        (RuntimeError("can't allocate memory: you tried"), "Out of memory.", "--shape", 1),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            "import of a package",
            "ulimit -v",
            1,
        ),
        (
            RuntimeError(
                "Caught RuntimeError in DataLoader worker process 0. can't allocate memory"
            ),
            "reads the inputs",
            "fewer --workers",
            1,
        ),
        (
            OSError(28, "No space left on device"),
            "not be written: No space left",
            "another folder",
            1,
        ),
        (
            PermissionError(13, "Permission denied", "x.pth"),
            "Permission denied: x.pth.",
            "HOOKSCOPE_DEBUG",
            1,
        ),
        (ModuleNotFoundError("No", name="torch"), "torch is not installed.", "pip install", 1),
        (
            ImportError("libcudart.so.12: cannot open", name="torch._C"),
            "imported: libcudart",
            "pip install",
            1,
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            "match torch",
            "pip install",
            1,
        ),
        (KeyError("bias"), "Unexpected KeyError: 'bias'", "report", 1),
        (ModuleNotFoundError("No module named 'timm'", name="timm"), "timm", "report", 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_exception_has_a_sentence(capsys, error, message, hint, status) -> None:
    assert error_report.report_error(error, Console()) == status
    said = capsys.readouterr()
    first, *rest = said.err.splitlines()
    assert said.out == ""
    assert first.startswith("Error: ")
    assert message in first
    assert hint in "\n".join(rest)
    assert "Traceback" not in said.err


def test_an_unforeseen_error_names_versions(capsys) -> None:
    error_report.report_error(ValueError(), Console())
    said = capsys.readouterr().err
    assert "Error: Unexpected ValueError.\n" in said
    for name in ("hookscope", "torch", "torchvision", "python"):
        assert f"{name} " in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "env", "traced"),
    [
        ([], {}, False),
        (["-v"], {}, False),
        (["-vv"], {}, True),
        ([], {"HOOKSCOPE_DEBUG": "1"}, True),
        ([], {"HOOKSCOPE_DEBUG": "0"}, False),
    ],
)
def test_a_traceback_only_when_asked_for(run, flags, env, traced) -> None:
    done = run("tree", "resnt18", *flags, env=env)
    assert done.rc == 2
    assert ("Traceback (most recent call last)" in done.stderr) == traced
    assert "\nError: There is no model" in f"\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ValueError('my own words')", "SystemExit(5)", "BrokenPipeError"])
def test_an_exception_in_the_model_is_status_1(run, tmp_path: Path, what: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "net.py").write_text(RAISES.format(what=what))
    done = run("capture", "net.py:Net", "-q")
    assert done.rc == 1
    # What is shown of the run that failed; one that ended the program is not made again.
    shown = done.stdout.splitlines()[1:]
    assert [line.split()[:2] for line in shown[:-1]] == (
        [] if "Exit" in what else [["(model)", "Net"]]
    )
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "work").glob("*.safetensors")) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_is_told_in_a_line_with_status_130(tmp_path: Path, clean_environment) -> None:
    source = RAISES.format(what="SystemExit")
    sleeper = "open('started', 'w').close(); import time; time.sleep(600)"
    (tmp_path / "net.py").write_text(source.replace("raise SystemExit", sleeper))
    words, started = (*COMMAND, "capture", "net.py:Net"), tmp_path / "started"
    process = start_python(*words, cwd=tmp_path, env=clean_environment, until=started.exists)
    done = end_by_signal(process)
    assert (done.rc, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert done.stderr.splitlines()[-1] == "Interrupted; nothing was written."
    assert sorted(p.suffix for p in tmp_path.iterdir() if p.is_file()) == ["", ".py"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_while_the_command_is_still_imported(tmp_path: Path, clean_environment) -> None:
    # A click that takes its time, and so holds up the imports of the command itself.
    (tmp_path / "click.py").write_text(
        "open('started', 'w').close()\nimport time\ntime.sleep(600)\n"
    )
    env = clean_environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"}
    started = tmp_path / "started"
    process = start_python(*COMMAND, "tree", cwd=tmp_path, env=env, until=started.exists)
    assert end_by_signal(process) == Finished(130, "", "Interrupted.\n")


@pytest.mark.slow
def test_missing_torch_is_one_sentence(tmp_path: Path, clean_environment) -> None:
    # An interpreter that has Click and nothing of torch: a folder that shadows it.
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    env = clean_environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"}
    done = run_python(*COMMAND, "tree", "resnet18", cwd=tmp_path, env=env)
    assert done.rc == 1
    assert done.stderr.splitlines()[0] == "Error: torch is not installed."
    assert "-m pip install" in done.stderr.splitlines()[1]
