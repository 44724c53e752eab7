"""A training that runs now is asked about its next step, and goes on as if it had not been."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.errors import CheckFailed, RequestError
from tests.refusals import refused
from tests.training.test_programs import same_bits

pytestmark = pytest.mark.slow

# It trains until there is a file ``stop``. With an argument, it keeps by hand what layers return,
# the gradients, and the weights, of each step.
TRAINING = """
import hashlib, os, sys, time
import torch
from torch import nn

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
steps, by_hand = 0, len(sys.argv) > 1
limit = int(sys.argv[1]) if by_hand else 100_000
kept = []
if by_hand:
    for name, module in model.named_modules():
        name = f"model.{name}".rstrip(".")
        def keep(_, __, output, name=name):
            kept[-1][name] = output.detach().clone()
            gradients, key = kept[-1]["gradients"], f"{name}/output.grad"
            output.register_hook(lambda gradient: gradients.update({key: gradient.clone()}))
        module.register_forward_hook(keep)
while steps < limit and not os.path.exists("stop"):
    kept.append({"gradients": {}})
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    steps += 1
    if by_hand:
        for name, weight in model.named_parameters():
            layer, _, name = name.rpartition(".")
            kept[-1]["gradients"][f"model.{layer}/{name}.grad"] = weight.grad.clone()
        kept[-1]["weights"] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    else:
        time.sleep(0.002)
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
torch.save(kept if by_hand else (steps, weights), "by_hand.pt" if by_hand else "end.pt")
"""


# Two models, of which the second is called after every fourth call of the first.
INFERENCE = """
import os, sys, time
import torch
from torch import nn

torch.manual_seed(4)
encoder = nn.Sequential(nn.Linear(3, 5), nn.Tanh()).eval()
decoder = nn.Linear(5, 2)
calls, kept = 0, []
if len(sys.argv) > 1:
    for name, module in (("encoder", encoder), ("encoder.0", encoder[0]),
                         ("encoder.1", encoder[1]), ("decoder", decoder)):
        module.register_forward_hook(
            lambda _, __, output, name=name: kept[-1].update({name: output.clone()})
        )
while calls < int((sys.argv + [10**9])[1]) and not os.path.exists("stop"):
    kept.append({})
    with torch.inference_mode():
        x = encoder(torch.full((1, 3), calls / 7))
        calls += 1
        if calls % 5 == 4:
            kept.append({})
            decoder(x)
            calls += 1
    time.sleep(0 if len(sys.argv) > 1 else 0.002)
torch.save(kept if len(sys.argv) > 1 else calls, "by_hand.pt" if len(sys.argv) > 1 else "end.pt")
"""


@contextmanager
def training(folder: Path, text: str = TRAINING) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is watched, from its first step on; it is stopped in the end."""
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "hookscope", "run", "-o", "run", "train.py"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)
    try:
        while not (folder / "run" / "live.sock").exists() and process.poll() is None:
            time.sleep(0.1)
        yield process
    finally:
        (folder / "stop").touch()
        try:
            process.communicate(timeout=300)
        finally:
            process.kill()


def by_hand(folder: Path, steps: int) -> list[dict[str, torch.Tensor]]:
    """What each step of the same training has, by PyTorch's own hooks."""
    (folder / "stop").unlink()
    subprocess.run([sys.executable, "train.py", str(steps)], cwd=folder, check=True, timeout=300)
    return torch.load(folder / "by_hand.pt")


def layer_of(key: str) -> str:
    return key.partition("/")[0]


def assert_as_by_hand(
    folder: Path, captures: list[hookscope.Capture]
) -> list[dict[str, torch.Tensor]]:
    """That captures have the bits of their steps, and that the training ended with its own."""
    steps, weights = torch.load(folder / "end.pt")
    kept = by_hand(folder, steps)
    assert same_bits(weights, kept[-1]["weights"])
    for capture in captures:
        expected = kept[capture.metadata["run"]["step"]]
        assert {layer_of(key) for key in capture} == expected.keys() - {"weights", "gradients"}
        for key, tensor in capture.items():
            assert same_bits(tensor, expected[layer_of(key)]), key
    run = hookscope.load(folder / "run")
    assert run.info["steps"] == steps
    assert len(run.steps) == steps
    left = [file.name for file in (folder / "run").iterdir()]
    assert not [name for name in left if name.startswith(".") or name == "live.sock"]
    return kept


def test_a_live_capture_has_the_bits_of_its_step_and_the_training_those_of_the_bare_one(
    tmp_path: Path, run
) -> None:
    with training(tmp_path):
        captures = [hookscope.capture(tmp_path / "run") for _ in range(3)]
        done = run("capture", "run", "--layer", "3", "-o", "three.safetensors", cwd=tmp_path)
        assert done.rc == 0, done.stderr
        shown = run("show", "run", "--live", "--layer", "0", cwd=tmp_path)
        assert "model.0  Linear  output" in shown.stdout, shown.stderr
        health = hookscope.check(tmp_path / "run", live=True)
        assert health.ok
        asked = hookscope.capture(tmp_path / "run", layers=["0"], what="input")
        assert list(asked) == ["model.0/input.0"]
        with refused(RequestError, "'nosuch'"):
            hookscope.capture(tmp_path / "run", layers=["nosuch"])
        with refused(CheckFailed, "model.1: .* 600"):
            hookscope.capture(tmp_path / "run", max_bytes=600)
        gradients = [hookscope.grads(tmp_path / "run", what="output,param")]
        done = run("grads", "run", "--layer", "3", "-o", "grads.safetensors", cwd=tmp_path)
        assert done.rc == 0, done.stderr
        gradients.append(hookscope.load(tmp_path / "grads.safetensors"))
        with socket.socket(socket.AF_UNIX) as silent:  # what never ends its request
            silent.connect(os.path.relpath(tmp_path / "run" / "live.sock"))
            silent.send(b"x")
            captures.append(hookscope.capture(tmp_path / "run"))
        of_file = hookscope.capture(tmp_path / "run", file=tmp_path / "four.safetensors")
    assert list(hookscope.load(tmp_path / "four.safetensors")) == list(of_file)
    of_layer = hookscope.load(tmp_path / "three.safetensors")
    assert list(of_layer) == ["model.3/output"]
    steps = [capture.metadata["run"]["step"] for capture in captures]
    assert steps == sorted(set(steps))
    kept = assert_as_by_hand(tmp_path, captures)
    for capture in gradients:
        expected = kept[capture.metadata["run"]["step"]]["gradients"]
        for key, tensor in capture.items():
            assert same_bits(tensor, expected[key]), key
    assert list(gradients[0]) and gradients[0].keys() == expected.keys()
    assert {*gradients[1]} == {"model.3/output.grad", "model.3/weight.grad", "model.3/bias.grad"}


def test_a_program_that_does_not_train_is_asked_about_the_next_call_of_a_model(
    tmp_path: Path, run
) -> None:
    with training(tmp_path, INFERENCE):
        one = [hookscope.capture(tmp_path / "run") for _ in range(3)]
        done = run("capture", "run", "--layer", "decoder", "-o", "two.safetensors", cwd=tmp_path)
        assert done.rc == 0, done.stderr
        both = hookscope.capture(tmp_path / "run", layers=["decoder", "encoder.1"])
        shown = run("show", "run", "--live", "--layer", "encoder.0", cwd=tmp_path)
        assert "encoder.0  Linear  output" in shown.stdout, shown.stderr
        assert hookscope.check(tmp_path / "run", live=True).ok
        with refused(RequestError, "'nosuch'"):
            hookscope.capture(tmp_path / "run", layers=["nosuch"])
        with refused(RequestError, "no gradients"):
            hookscope.grads(tmp_path / "run")
    calls = torch.load(tmp_path / "end.pt")
    kept = by_hand(tmp_path, calls)
    for capture in one:
        expected = kept[capture.metadata["run"]["step"]]
        assert {layer_of(key) for key in capture} == {*expected}
        assert all(same_bits(x, expected[layer_of(key)]) for key, x in capture.items())
    of_two = hookscope.load(tmp_path / "two.safetensors")
    assert (list(of_two), {*both}) == (["decoder/output"], {"decoder/output", "encoder.1/output"})
    for capture in (of_two, both):
        later = kept[capture.metadata["run"]["step"] :]
        for key, tensor in capture.items():  # the first call from this step on
            name = layer_of(key)
            assert same_bits(tensor, next(step[name] for step in later if name in step)), key
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["run.json"]


@pytest.mark.exhaustive
def test_a_live_capture_twenty_times_with_either_side_killed(tmp_path: Path) -> None:
    choose, captures = random.Random(5), []
    ask = "import hookscope; print(hookscope.capture('run'))"
    with training(tmp_path):
        for number in range(20):
            time.sleep(choose.random() / 2)
            if number % 4:
                captures.append(hookscope.capture(tmp_path / "run"))
                continue
            client = subprocess.Popen([sys.executable, "-c", ask], cwd=tmp_path)
            time.sleep(2 + choose.random() * 2)  # from before its request to after the answer
            client.kill()
            client.wait()
    assert_as_by_hand(tmp_path, captures)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(1, 6))
def test_a_training_that_is_killed_ends_the_waiting(tmp_path: Path, number: int) -> None:
    with training(tmp_path) as process:
        hookscope.capture(tmp_path / "run")
        process.send_signal(signal.SIGSTOP)  # so that the step does not end
        client = subprocess.Popen(
            [sys.executable, "-m", "hookscope", "capture", "run"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        for _ in range(600):
            if list((tmp_path / "run").glob(".answer*")):  # it has asked
                break
            time.sleep(0.1)
        time.sleep(number / 10)
        process.kill()
        _, said = client.communicate(timeout=300)
        assert client.returncode == 1
        assert b"step" in said
    with refused(RequestError, hint="hookscope run"):
        hookscope.capture(tmp_path / "run")
    assert len(hookscope.load(tmp_path / "run").steps) > 0


def test_who_cannot_be_asked(tmp_path: Path) -> None:
    with refused(RequestError):  # nobody runs
        hookscope.capture("sample_models/run")
    with refused(RequestError, "several", hint="sample_models/run"):
        hookscope.capture("sample_models")
    with refused(RequestError, "device"):
        hookscope.capture("sample_models/run", device="cpu")
    with refused(RequestError, "live"):
        hookscope.check("resnet18", live=True)
    if os.getuid() == 0:
        (tmp_path / "run.json").write_text("{}")
        os.chown(tmp_path, 12345, -1)
        with refused(RequestError, "user"):
            hookscope.capture(tmp_path)
