"""Signals that ask a command to end: it cleans up as after Ctrl-C, and its status names them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import COMMAND, end_by_signal, start_python

WAITING = """
import time
from pathlib import Path
from torch import nn

class Waiting(nn.Module):
    def forward(self, x):
        Path("begun").touch()
        time.sleep(600 if not Path("short").exists() else 1)
        return x
"""


def begin(folder: Path, environment: dict[str, str], *before: str) -> subprocess.Popen[str]:
    """Start a capture, and wait until its model runs."""
    (folder / "waiting.py").write_text(WAITING)
    words = ("capture", "waiting.py:Waiting", "--shape", "1x2", "-o", "out.safetensors")
    line, begun = (*COMMAND, *words), folder / "begun"
    return start_python(*line, cwd=folder, env=environment, until=begun.exists, before=before)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_interrupts_a_command(
    clean_environment, tmp_path: Path, number: signal.Signals
) -> None:
    done = end_by_signal(begin(tmp_path, clean_environment), number)
    assert done.rc == 128 + number
    assert done.stderr.splitlines()[-1] == "Interrupted; nothing was written."
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(clean_environment, tmp_path: Path) -> None:
    (tmp_path / "short").touch()
    process = begin(tmp_path, clean_environment, "nohup")
    done = end_by_signal(process, signal.SIGHUP)
    assert done.rc == 0, done.stderr
    assert (tmp_path / "out.safetensors").exists()


# How code drops an exception that comes while it runs: Python itself does in all but the last.
DROPS = {
    "a finalizer": "type('Last', (), {'__del__': lambda self: end()})()",
    "a weak reference": "thing = type('Thing', (), {})()\nkept = weakref.ref(thing, end)\n"
    "del thing",
    "the garbage collector": "gc.callbacks.append(lambda phase, _: phase == 'stop' or end())\n"
    "gc.collect()\ngc.callbacks.pop()",
    "an import that may fail": "try:\n    end()\nexcept BaseException:\n    pass",
}
DROPPING = """
import gc, signal, weakref
from torch import nn
def end(*_):
    signal.raise_signal(signal.{number})
def net():
{drop}
    return nn.Linear(2, 2)
"""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("command", ["capture", "fingerprint", "memory", "grads", "tree"])
def test_a_request_to_end_is_kept_where_its_exception_is_dropped(
    run, tmp_path: Path, command: str, drop: str, number: str
) -> None:
    body = "".join(f"    {line}\n" for line in DROPS[drop].splitlines())
    (tmp_path / "net.py").write_text(DROPPING.format(number=number, drop=body))
    done = run(command, "net.py:net", "--shape", "1x2", cwd=tmp_path)
    assert done.rc == 128 + getattr(signal, number), done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("Interrupted")
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir() if file.suffix not in (".py", "")] == []


def test_an_error_that_a_dropped_request_to_end_causes_is_not_reported(run, tmp_path: Path) -> None:
    drop = "    try:\n        end()\n    except BaseException:\n        raise ImportError('half')"
    (tmp_path / "net.py").write_text(DROPPING.format(number="SIGTERM", drop=drop))
    done = run("capture", "net.py:net", "--shape", "1x2", cwd=tmp_path)
    assert (done.rc, done.stdout) == (128 + signal.SIGTERM, "")
    assert "half" not in done.stderr
