"""A process that hookscope did not start is asked, and goes on as if it had not been.

Python 3.14 lets another process run a script in its main thread. The processes here run it when
they get a signal, which is as good a point.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.cli.main import main
from hookscope.errors import HookscopeError, RequestError, StoreError
from hookscope.specs.program_options import AttachOptions
from hookscope.stores.runs import attachment
from hookscope.stores.runs.live_socket import read_result
from tests.refusals import refused
from tests.training.test_live_capture import TRAINING, by_hand
from tests.training.test_programs import same_bits

pytestmark = pytest.mark.slow

RUNS_SCRIPTS = """
import signal
def run_script(number, frame):
    with open("path") as file:
        path = file.read()
    with open(path) as file:
        exec(file.read(), {})
signal.signal(signal.SIGUSR1, run_script)
"""
# What is left of hookscope when the program has ended.
LEFT = """
import json, sys, threading, multiprocessing.process, torch.export
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(30)
hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
left = [name for module in model.modules() for name in hooks if getattr(module, name)]
left += [f"{f.__qualname__} of {f.__code__.co_filename}" for f in (torch.nn.Module.__call__,
    multiprocessing.process.BaseProcess.start, torch.export.export)
    if "hookscope" in f.__code__.co_filename]
left += [thread.name for thread in threading.enumerate()[1:]]
left += sys.path if sys.path != globals().get("path", sys.path) else []
json.dump(left, open("left.json", "w"))
"""
LACKS_HOOKSCOPE = """
import os, sys
path = [entry for entry in sys.path if not os.path.isdir(os.path.join(entry, "hookscope"))]
sys.path[:] = path
"""
# Nearly always in the middle of a call, as a server between its requests never is.
SLOW_INFERENCE = """
import os, time, threading
import torch
from torch import nn
torch.manual_seed(0)
class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.2)
        return x.tanh()
model = nn.Sequential(nn.Linear(3, 5), Slow(), nn.Linear(5, 2)).eval()
head = nn.Linear(2, 1)
class Broken(nn.Linear):
    def parameters(self, recurse=True):
        raise ValueError("these are secret")
broken = Broken(1, 1)
x = torch.randn(2, 3)
expected = []
for layer in model:
    layer.register_forward_hook(lambda _, __, output: expected.append(output.clone()))
with torch.inference_mode():
    model(x)
for layer in model:
    layer._forward_hooks.clear()
torch.save(expected, "by_hand.pt")
open("ready", "w").close()
while not os.path.exists("stop"):
    with torch.inference_mode():
        model(x)
        head(model(x))
        if os.path.exists("break"):
            broken(x[:, :1])
"""
IDLE = (
    "import os, time\nopen('ready', 'w').close()\nwhile not os.path.exists('stop'): time.sleep(.01)"
)

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run scripts by a signal; yield the folder of temporary files, which is empty in the end."""

    def execute_in(pid: int, script: Path) -> None:
        (tmp_path / "path").write_text(str(script))
        os.kill(pid, signal.SIGUSR1)

    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(attachment, "execute_in", execute_in)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    assert list(folder.iterdir()) == []


@contextmanager
def process(folder: Path, text: str, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs scripts, from the first call of its model until its end."""
    (folder / "program.py").write_text(RUNS_SCRIPTS + text)
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, stderr=subprocess.PIPE, user=user
    ) as started:
        try:
            eventually((folder / "ready").exists)
            yield started
        finally:
            (folder / "stop").touch()
            try:
                said = started.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired:
                started.kill()
                raise
    assert said == b"", said.decode()


def eventually(condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it does not come")


def attach(pid: int, *layers: str, wait: int = 20) -> hookscope.Capture:
    asked = AttachOptions().asked(layers)
    capture, answer = attachment.ask_process(pid, asked, layers, hookscope.load, wait)
    assert answer.unmet == ()
    return capture


def test_a_training_is_listed_and_recorded_and_ends_with_the_bits_of_the_bare_one(
    execute: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TRAINING.replace("time.sleep(0.002)", "open('ready', 'w').close(); time.sleep(0.02)")
    (tmp_path / "train.py").write_text(TRAINING)
    with process(tmp_path, text + LEFT) as started:
        pid = str(started.pid)
        with pytest.raises(SystemExit) as ended:
            main(["attach", pid, "--list", "--wait", "1", "--json"])
        assert ended.value.code == 0
        [model] = json.loads(capsys.readouterr().out)["models"]
        assert (model["name"], model["type"], model["parameters"]) == ("model", "Sequential", 58)
        assert model["calls"] > 10
        with pytest.raises(SystemExit) as ended:
            main(["attach", pid, "--layer", "model*", "-o", "all.safetensors"])
        assert ended.value.code == 0
        assert "wrote all.safetensors" in capsys.readouterr().err
        captures = [hookscope.load("all.safetensors"), attach(started.pid, "model*")]
        assert list(attach(started.pid, "3", "!model")) == ["model.3/output"]
        ask = (
            "import os, signal, sys, tempfile, pathlib; tempfile.tempdir = 'temporary'\n"
            "from hookscope.stores.runs import attachment\n"
            "from hookscope.cli.main import main\n"
            "def execute_in(pid, script):\n"
            "    pathlib.Path('path').write_text(str(script)); os.kill(pid, signal.SIGUSR1)\n"
            "attachment.execute_in = execute_in\n"
            "main(sys.argv[1:])"
        )
        words = [sys.executable, "-c", ask, "attach", pid, "--list", "--wait", "600"]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as client:
            eventually(lambda: list(execute.glob("*/.answer*")))
            client.kill()
        eventually(lambda: not list(execute.iterdir()))  # the process has removed the folder
    assert json.loads(Path("left.json").read_text()) == []
    steps, weights = torch.load("end.pt")
    kept = by_hand(tmp_path, steps)
    assert same_bits(weights, kept[-1]["weights"])
    for capture in captures:
        outputs = {key.partition("/")[0]: tensor for key, tensor in capture.items()}
        [_] = [
            step
            for step in kept
            if outputs.keys() == step.keys() - {"weights"}
            and all(same_bits(tensor, step[name]) for name, tensor in outputs.items())
        ]


@pytest.mark.exhaustive
def test_a_call_that_runs_already_is_left_out_and_the_next_one_is_recorded(
    execute: Path, tmp_path: Path
) -> None:
    with process(tmp_path, LACKS_HOOKSCOPE + SLOW_INFERENCE + LEFT) as started:
        expected = torch.load("by_hand.pt")
        for _ in range(3):
            capture = attach(started.pid, "model.*")
            for tensor, layer in zip(expected, "012", strict=True):
                assert same_bits(capture[f"model.{layer}/output"], tensor)
        assert capture.metadata["process"] == started.pid
        both = attach(started.pid, "model.0", "head")
        assert set(both) == {"model.0/output", "head/output"}
        with refused(RequestError, "'nosuch' matches no layer of head, model", status=2):
            attach(started.pid, "nosuch", wait=1)
        options = AttachOptions(list=True).asked(())
        models, _ = attachment.ask_process(started.pid, options, (), read_result, 1)
        assert {model.name: model.parameters for model in models.models} == {"model": 32, "head": 3}
        assert models.unseen == ()
        Path("break").touch()
        with refused(StoreError, "could not be followed: .*these are secret"):
            attach(started.pid, "broken", wait=1)
    assert json.loads(Path("left.json").read_text()) == []


def test_a_process_without_models_says_so(execute: Path, tmp_path: Path) -> None:
    with (
        process(tmp_path, IDLE) as started,
        refused(RequestError, "has not imported torch", status=2),
    ):
        attach(started.pid, "*")


def test_a_process_that_is_killed_ends_the_waiting(execute: Path, tmp_path: Path) -> None:
    with process(tmp_path, "import torch\n" + IDLE) as started:
        with refused(RequestError, "called no model within 1 second", hint="--wait", status=2):
            attach(started.pid, "*", wait=1)

        def kill() -> None:
            eventually(lambda: list(execute.glob("*/.answer*")))  # it is asked
            started.kill()

        threading.Thread(target=kill).start()
        with refused(StoreError, "ended before it answered", status=1):
            attach(started.pid, "*", wait=600)


def test_what_fails_in_the_process_is_said_by_the_command(execute: Path, tmp_path: Path) -> None:
    (tmp_path / "hookscope").mkdir()
    (tmp_path / "hookscope" / "__init__.py").touch()
    with process(tmp_path, IDLE) as started, refused(StoreError, "No module named 'hookscope.tr"):
        attach(started.pid, "*")


def test_a_process_that_comes_late_to_the_script_removes_it(
    execute: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "_START", 0)
    with process(tmp_path, IDLE) as started:
        started.send_signal(signal.SIGSTOP)
        with refused(StoreError, "came to no point within 1 second"):
            attach(started.pid, "*", wait=1)
        started.send_signal(signal.SIGCONT)
        eventually(lambda: not list(execute.iterdir()))


def test_who_cannot_be_asked(run, tmp_path: Path) -> None:
    for words, said in (
        ([1 << 22, "--list"], "No process has the number"),
        ([os.getpid()], "Nothing is asked"),
        ([os.getpid(), "--list", "--layer", "*"], "cannot be used together"),
        ([os.getpid(), "--list", "-o", "a.safetensors"], "--output is for --layer"),
    ):
        done = run("attach", *words)
        assert (done.rc, done.stdout) == (2, "")
        assert said in done.stderr
    if not hasattr(sys, "remote_exec"):
        done = run("attach", os.getpid(), "--list")
        assert done.rc == 2
        assert "needs Python 3.14 or newer" in done.stderr
        assert "hookscope run" in done.stderr
    if os.getuid() == 0:
        with subprocess.Popen(["sleep", "60"], user=12345) as other:
            with pytest.raises(HookscopeError, match="another user's"):
                attach(other.pid, "*")
            other.kill()
