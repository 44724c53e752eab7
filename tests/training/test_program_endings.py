"""However a program ends, its exit status is its own, and what was recorded or not is said."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from tools.warm_process import Finished, WarmProcess

pytestmark = pytest.mark.slow

MODEL = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
for _ in range(5):
    out = net(torch.ones(2, 3))
print(out.sum().item())
"""
ENDINGS = {
    "an exception": ("raise ValueError('mine')", 1),
    "an exit status": ("sys.exit(7)", 7),
    "os._exit": ("sys.stdout.flush(); os._exit(3)", 3),
    "a fork": (
        "child = os.fork()\nif not child:\n    net(torch.ones(2, 3))\n    os._exit(0)\n"
        "os.waitpid(child, 0)",
        0,
    ),
}
Start = Callable[..., Finished]


@pytest.fixture
def start(warm_process: WarmProcess, bare_environment, tmp_path: Path) -> Start:
    """Run a script in the folder of the test: bare, or with ``hookscope run OPTIONS``."""

    def run(text: str, *options: str) -> Finished:
        script = tmp_path / "program.py"
        script.write_text(text)
        if not options:
            return warm_process.run([], tmp_path, bare_environment, script=script)
        return warm_process.run(["run", *options, str(script)], tmp_path, bare_environment)

    return run


def keys(folder: Path) -> set[str]:
    with safe_open(folder / "program.run.safetensors", "numpy") as file:
        return set(file.keys())


@pytest.mark.parametrize("name", ENDINGS)
def test_the_ending_is_that_of_the_program(start: Start, tmp_path: Path, name: str) -> None:
    ending, status = ENDINGS[name]
    bare = start(MODEL + ending)
    ours = start(MODEL + ending, "--capture", "--layer", "0")
    assert (bare.rc, ours.rc) == (status, status)
    assert ours.stdout == bare.stdout
    said = [line for line in ours.stderr.splitlines() if not line.startswith("hookscope: ")]
    assert said[-1:] == bare.stderr.splitlines()[-1:]
    if name == "os._exit":  # which ends a process at once
        assert not list(tmp_path.glob("*.safetensors"))
    else:
        calls = ["", ":2", ":3", ":4", ":5"]
        assert keys(tmp_path) == {f"net.0{call}/output" for call in calls}


# Where a program fails or is interrupted, with all hooks in its model.
BREAKS = {
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "signal.raise_signal(signal.SIGINT)",
    "an interrupt of another class": "raise type('Mine', (KeyboardInterrupt,), {})",
    "a termination": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGTERM)",
    "a text": "sys.exit('the end')",
    "a function of torch": "net(torch.ones(2, 5))",
    "a hook of the program": "net[0].register_forward_hook(lambda *_: 1 / 0)\n"
    "try:\n    net(torch.ones(2, 3))\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
    "net(torch.ones(2, 3))",
    "the backward pass": "out = net(torch.ones(2, 3))\nout.register_hook(lambda _: 1 / 0)\n"
    "out.sum().backward()",
    "a call of ours": "class Odd(dict):\n"
    "    def items(self):\n        raise KeyboardInterrupt\n    values = items\n"
    "class Last(nn.Module):\n    def forward(self, x):\n        return Odd(x=x)\n"
    "net.append(Last())\nnet(torch.ones(2, 3))\nraise KeyboardInterrupt",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("place", BREAKS)
@pytest.mark.parametrize(
    "mode",
    [
        "-o out",
        "--list -o out.json",
        "--capture --ops --what output,output.grad -o out.safetensors",
        "--check -o out.json",
        "--trace -o out.json",
    ],
)
def test_a_program_breaks_off_as_under_python(
    watched, fork_server, work: Path, mode: str, place: str
) -> None:
    text = f"import signal, traceback\n{MODEL}{BREAKS[place]}"
    ours = watched(text, *mode.split())
    bare = fork_server.run(["script.py"], work, None)
    assert (ours.status, ours.stdout) == (bare.status, bare.stdout)
    assert "hookscope" not in ours.own.stderr
    if place != "a call of ours":  # which Python does not make
        assert without_torch(ours.own.stderr) == without_torch(bare.stderr)
    output = work / mode.split()[-1]
    assert output.exists() == (place != "a termination" or output.name == "out")


def without_torch(trace: str) -> str:
    """A traceback without the frames of PyTorch that calls hooks, which it has with any hook."""
    return re.sub(r'  File "[^"]*torch/nn/modules/module.py".*\n(    .*\n)*', "", trace)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--layer", "net.9"], "'net.9' .* net.0, net.1 or net"),
        (["--calls", "2,7"], "net .* 5 .* 7"),
        (["--max-bytes", "40"], "net.1: .* 40"),
    ],
)
def test_what_did_not_come_is_said_in_the_end(start: Start, options: list[str], said: str) -> None:
    done = start(MODEL, "--capture", *options)
    assert done.rc == 0
    assert re.search(f"(?m)^hookscope: .*{said}", done.stderr)


def test_a_program_without_a_model_is_told(start: Start, tmp_path: Path) -> None:
    done = start("import torch\nprint(1)", "--capture")
    assert (done.rc, done.stdout) == (0, "1\n")
    assert "no model" in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits")
def test_on_a_full_disk_the_program_ends_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MODEL)
    command = [sys.executable, "-B", "-m", "hookscope", "run", "--capture", "program.py"]

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, preexec_fn=fill_disk
    )
    assert done.returncode == 0
    assert "\nhookscope: " in f"\n{done.stderr}" and "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    "compiler", ["torch.jit.script(net)", "torch.export.export(net, (torch.ones(2, 3),))"]
)
def test_a_model_can_be_scripted_or_exported_after_its_calls(
    start: Start, tmp_path: Path, compiler: str
) -> None:
    text = f"import warnings\nwarnings.simplefilter('ignore')\n{MODEL}{compiler}\nprint('done')"
    bare = start(text)
    ours = start(text, "--capture", "--layer", "0")
    assert (ours.stdout, ours.rc) == (bare.stdout, 0), ours.stderr
    assert ours.stdout.endswith("done\n")
    assert "after that" in ours.stderr
    assert len(keys(tmp_path)) == 5
