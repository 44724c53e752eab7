"""However a program ends, its exit status is its own, and what was recorded or not is said."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

pytestmark = pytest.mark.slow

MODEL = """
import os, signal, sys, traceback, warnings
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
for _ in range(5):
    out = net(torch.ones(2, 3))
print(out.sum().item())
"""
# Where a program ends, fails or is interrupted, with all hooks in its model.
BREAKS = {
    "an exit status": "sys.exit(7)",
    "a text": "sys.exit('the end')",
    "os._exit": "sys.stdout.flush()\nos._exit(3)",
    "a fork": "child = os.fork()\nif not child:\n    net(torch.ones(2, 3))\n    os._exit(0)\n"
    "os.waitpid(child, 0)",
    "an exception": "raise ValueError('mine')",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "signal.raise_signal(signal.SIGINT)",
    "an interrupt of another class": "raise type('Mine', (KeyboardInterrupt,), {})",
    "a termination": "sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGTERM)",
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
AT_ONCE = ("a termination", "os._exit")
CALLS = {f"net.0{call}/output" for call in ("", ":2", ":3", ":4", ":5")}


def keys(file: Path) -> set[str]:
    with safe_open(file, "numpy") as opened:
        return set(opened.keys())


@pytest.mark.sampled(7)
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
    ours = watched(MODEL + BREAKS[place], *mode.split())
    bare = fork_server.run(["script.py"], work, None)
    assert (ours.status, ours.stdout) == (bare.status, bare.stdout)
    assert "hookscope" not in ours.own.stderr
    if place != "a call of ours":  # which Python does not make
        assert without_torch(ours.own.stderr) == without_torch(bare.stderr)
    output = work / mode.split()[-1]
    assert output.exists() == (place not in AT_ONCE or output.name == "out")
    if output.suffix == ".safetensors" and output.exists():
        assert keys(output) >= CALLS


def without_torch(trace: str) -> str:
    """A traceback without the frames of PyTorch that calls hooks, which it has with any hook."""
    return re.sub(r'  File "[^"]*torch/nn/modules/module.py".*\n(    .*\n)*', "", trace)


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
    assert "hookscope: " in done.stderr and "File too large" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    "compiler", ["torch.jit.script(net)", "torch.export.export(net, (torch.ones(2, 3),))"]
)
def test_a_model_can_be_scripted_or_exported_after_its_calls(
    both_ways, work: Path, compiler: str
) -> None:
    ended = both_ways(f"{MODEL}{compiler}\nprint('done')", "--capture", "--layer", "0")
    assert ended.stdout.endswith("done\n") and ended.status == 0
    assert any("after that" in line for line in ended.messages)
    assert keys(work / "script.run.safetensors") == CALLS
