"""The line that ``capture`` and ``grads`` end with: it runs as it stands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import torch

from hookscope.cli.next_command import next_command
from hookscope.hooks.capture import Capture
from tests.processes import NEXT

NET = """
from torch import nn
def make(width, act="relu"):
    return nn.Sequential(nn.Linear(3, int(width)), nn.ReLU(), nn.Linear(int(width), 2))
"""


def following(ctx, output: object = None) -> list[str]:
    """The words of the next command, had the model returned ``output``."""
    capture = Capture()
    capture.output = torch.zeros(1, 5) if output is None else output
    return shlex.split(next_command(ctx, capture, Path("a b.safetensors")))


def looking(ctx, **tensors: tuple[str, torch.Tensor]) -> list[str]:
    """The words of the next command, had these been recorded: kind and value of each layer."""
    capture = Capture()
    for name, (kind, value) in tensors.items():
        capture.put(value, module=name, type="Layer", call=1, what=kind, kind=kind)
    capture.output = torch.zeros(1, 5)
    return shlex.split(next_command(ctx, capture, Path("a b.safetensors")))


def test_named_layers_with_maps_are_looked_at(parse) -> None:
    maps, vector = ("output", torch.zeros(1, 4, 5, 5)), ("output", torch.zeros(1, 4, 1, 1))
    named = parse("capture", "--layer", "*")
    show = ["hookscope", "show", "a b.safetensors", "b/output", "--map"]
    assert looking(named, a=maps, b=maps, c=vector) == show
    assert looking(named, c=vector)[1] == "grads"
    assert looking(parse("capture"), a=maps)[1] == "grads"
    attention = ("attention", torch.zeros(1, 4, 5, 5))
    assert looking(named, a=maps, d=attention) == ["hookscope", "plot", "a b.safetensors"]


def test_gradients_are_drawn_or_without_matplotlib_reported(parse, monkeypatch) -> None:
    ctx = parse("grads", "--layer", "fc")
    assert following(ctx) == ["hookscope", "plot", "a b.safetensors"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert following(ctx) == ["hookscope", "report", "a b.safetensors"]


def test_every_shared_choice_is_carried_over(parse) -> None:
    for name in ("a b.png", "c.png"):
        Path(name).write_bytes(b"\x89PNG\r\n\x1a\n")
    given = [
        *("--model-arg", "width=8", "--layer", "layer1.*", "--layer", "!fc", "--type", "Conv2d"),
        *("--depth", "2", "--leaves", "--input", "a b.png", "--input", "c.png"),
        *("--shape", "1x3x8x8", "--preprocess", "imagenet", "--size", "32x48"),
        *("--mean", "0.5,0.25,0", "--std", "1,1,1", "--weights", "w.pth", "--seed", "7"),
        *("--dtype", "float64", "--device", "cpu", "--train"),
    ]
    own = ["--what", "input", "--output", "x.safetensors", "--force"]
    words = following(parse("capture", "net.py:make", *given, *own))
    assert words == ["hookscope", "grads", "net.py:make", *given]


def test_what_was_not_chosen_is_left_out(parse) -> None:
    assert following(parse("capture")) == ["hookscope", "grads", "resnet18"]


def test_variables_and_files_are_carried_over_too(parse, monkeypatch) -> None:
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_LAYER", "fc conv1")
    Path("hookscope.toml").write_text("[capture]\nshape = [1, 3, 8, 8]\ntrain = true\n")
    assert following(parse("capture", "--no-leaves"))[3:] == [
        *("--layer", "fc", "--layer", "conv1", "--no-leaves", "--shape", "1x3x8x8", "--train"),
    ]


@pytest.mark.parametrize(
    ("model", "output", "summed"),
    [
        ("resnet18", torch.zeros(1, 5), False),
        ("fcn_resnet50", {"out": torch.zeros(1, 5, 2, 2)}, False),
        ("retinanet_resnet50_fpn", [{"boxes": torch.zeros(3, 4)}], True),
        ("raft_small", [torch.zeros(1, 2, 8, 8)], True),
        ("net.py:make", torch.zeros(1, 1), True),
        ("net.py:make", torch.zeros(1, 3, 4), True),
        ("net.py:make", {"loss": torch.zeros(())}, True),
        ("net.py:make", "no tensor", True),
    ],
)
def test_an_output_without_classes_is_summed(parse, model, output, summed) -> None:
    words = following(parse("capture", model), output)
    assert (words[3:] == ["--loss", "sum"]) == summed


DIGITS = ("sample_models/digits.py:trained", "--input", "sample_models/five.png")
TEXT = ("hf:sample_models/capitals", "--input", "text:the capital of Peru is")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("grads", *DIGITS, "--what", "input", "--layer", "."), "kind: maps "),
        (("grads", *DIGITS, "--layer", "conv1"), "kind: maps "),
        (("grads", *DIGITS, "--layer", "fc"), "kind: hist "),
        (("grads", *DIGITS), "kind: flow "),
        (("step", *DIGITS, "--layer", "fc"), "kind: hist "),
        (("capture", *TEXT, "--attention"), "kind: attention "),
        (("capture", *DIGITS, "--layer", "conv2"), "conv2/output"),
        (("capture", *TEXT), "logit"),
        (("cam", *DIGITS), "pool"),
        (("cam", *DIGITS, "--by", "saliency"), "(model)"),
    ],
    ids=" ".join,
)
def test_what_is_recorded_is_what_the_next_line_shows(
    run, samples_folder: Path, words: tuple[str, ...], shown: str
) -> None:
    done = run(*words, cwd=samples_folder)
    *_, last = done.stderr.splitlines()
    assert done.rc == 0 and NEXT.fullmatch(last), done.stderr
    after = run(*shlex.split(last)[2:], cwd=samples_folder)
    assert after.rc == 0 and shown in after.stdout + after.stderr


def test_a_capture_of_generated_tokens_is_shown(parse) -> None:
    context = parse("capture", "letters.py:Letters", "--generate", "3")
    capture = Capture()
    assert next_command(context, capture, Path("a.safetensors")) == "hookscope show a.safetensors"
    assert next_command(context, capture, None) == ""
