"""The command line that made a file, rebuilt from what the file tells of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from hookscope.cli.main import cli
from hookscope.page.command import command_of


@pytest.mark.parametrize(
    "line",
    [
        "hookscope capture resnet18",
        "hookscope capture 'my models/a.py:Net' --input 'a cat.png' --input b.png --layer '*.0'"
        " --layer '!x' --type Conv2d --depth 2 --leaves --what input,output --ops --verify",
        "hookscope capture vgg11 --shape 1x3x8x8 --seed 7 --dtype float64 --max-bytes 2000000000"
        " --model-arg width=8 --edit 'fc=scale:0.5' --hook a.py:f --hook-arg by=2 --hook-kind"
        " forward_pre --compare",
        "hookscope capture vgg11 --input a.png --size 32x48 --mean 0.5,0.25,0.0 --std 1.0",
        "hookscope grads alexnet --loss kl --target 3 --reduction sum --raw --grad-edit fc=sign",
        "hookscope step alexnet --optimizer adam --lr 0.5 --opt-arg amsgrad=1",
    ],
)
def test_the_command_is_rebuilt_from_what_the_file_tells(line, parse) -> None:
    for name in ("a cat.png", "b.png", "a.png"):
        Path(name).write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("a.py").write_text("def f(module, inputs): ...")
    _, verb, *words = shlex.split(line)
    chosen = parse(verb, *words)
    given = {k: v for k, v in chosen.params.items() if k not in ("output", "force")}
    told = {name: value for name, value in given.items() if name not in ("model", "input")}
    plain = parse(verb).params
    options = json.loads(json.dumps({k: v for k, v in told.items() if v != plain[k]}))
    metadata = {
        "command": verb,
        "model": {"word": given["model"], "source": "torchvision"},
        "inputs": [{"word": word, "sha256": "00"} for word in given["input"] or ()],
        "options": options,
    }
    again = shlex.split(command_of(metadata))
    assert again[:2] == ["hookscope", verb]
    assert parse(verb, *again[2:]).params == chosen.params


def test_every_option_of_a_recording_command_keeps_its_flag_when_it_is_rebuilt() -> None:
    for verb in ("capture", "grads", "step"):
        for option in cli.commands[verb].options():
            if option.name in ("model", "input", "output", "force") or not option.expose_value:
                continue
            told = {"command": verb, "model": {"word": "m"}, "options": {option.name: "x"}}
            words = shlex.split(command_of(told))
            assert f"--{option.key}" in words, option.key


@pytest.mark.parametrize(
    "told",
    [
        {"command": "record"},
        {"model": {"word": "Net", "source": "live"}},
        {"inputs": [{"word": "tensor", "sha256": "00"}]},
        {"options": {"hooks": {"fc": "a function"}}},
        {"options": {"hooks": ["fc=a.py:f", "a partial"]}},
    ],
)
def test_what_only_python_can_have_made_has_no_command(told) -> None:
    fine = {"command": "capture", "model": {"word": "m"}, "inputs": [], "options": {}}
    assert command_of(fine) == "hookscope capture m"
    assert command_of(fine | told) == ""
