"""The command line that made a file, rebuilt from what the file tells of it."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import hookscope
from hookscope.cli.main import cli
from hookscope.specs.request import ONLY_PYTHON
from hookscope.views.html.page_header import original_command


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
    given = {k: v for k, v in chosen.params.items() if k not in ("output", "no_output", "force")}
    kept = {name: value for name, value in given.items() if name not in ("model", "input")}
    plain = parse(verb).params
    options = json.loads(json.dumps({k: v for k, v in kept.items() if v != plain[k]}))
    metadata = {
        "command": verb,
        "model": {"spec": given["model"], "source": "torchvision"},
        "inputs": [{"spec": spec.text, "sha256": "00"} for spec in given["input"] or ()],
        "options": options,
    }
    again = shlex.split(original_command(metadata))
    assert again[:2] == ["hookscope", verb]
    assert parse(verb, *again[2:]).params == chosen.params


def test_every_option_of_a_recording_command_keeps_its_flag_when_it_is_rebuilt() -> None:
    for verb in ("capture", "grads", "step"):
        for option in cli.commands[verb].options():
            if (
                option.name in ("model", "input", "output", "no_output", "force")
                or not option.expose_value
            ):
                continue
            metadata = {"command": verb, "model": {"spec": "m"}, "options": {option.name: "x"}}
            words = shlex.split(original_command(metadata))
            assert f"--{option.key}" in words, option.key


@pytest.mark.parametrize(
    "change",
    [
        {"command": "record"},
        {"model": {"spec": "Net", "source": "live"}},
        {"inputs": [{"spec": "tensor", "sha256": "00"}]},
        {"options": {"loss": {ONLY_PYTHON: "function"}}},
        {"options": {"hooks": {"fc": {ONLY_PYTHON: "function"}}}},
        {"options": {"hooks": ["fc=a.py:f", {ONLY_PYTHON: "partial"}]}},
    ],
)
def test_what_only_python_can_have_made_has_no_command(change) -> None:
    fine = {"command": "capture", "model": {"spec": "m"}, "inputs": [], "options": {}}
    assert original_command(fine) == "hookscope capture m"
    assert original_command(fine | change) == ""


MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, name: str = "", scale=1.0) -> None:
        super().__init__()
        self.add_module("a layer's " + name, nn.Conv2d(1, 3, 3))
        self.add_module("fc", nn.Linear(108, 4))
        self.scale = scale

    def forward(self, x):
        first, second = self.children()
        return second(first(x * self.scale).flatten(1))

def shifted(module, input, output, by: float = 1.0, word: str = ""):
    return output + by + len(word)

def squared(output):
    return (output ** 2).sum()
"""
IMAGE = "--input 'my five.png'"


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        f"capture net.py:Net {IMAGE} --size 8 --mean -0.5 --std .25 --what output,input --seed 3",
        # What reads like the description of a Python object; quotes, spaces, a shell's own signs.
        """capture net.py:Net --model-arg 'name=an "x" $y' --layer 'a layer*' --shape 2x1x8x8 --ops
        --hook fc=net.py:shifted --hook-arg 'word=a word' --hook-arg by=-2""",
        "capture net.py:Net --shape 1x1x8x8 --edit fc=scale:-0.5 --compare --verify --leaves",
        f"""grads net.py:Net {IMAGE} --size 8x8 --loss net.py:squared --dtype float64
        --max-bytes 1GiB""",
        """step net.py:Net --model-arg scale=0.5 --shape 2x1x8x8 --target 1,3 --grad-edit fc=scale:2
        --optimizer adam --lr 0.01 --opt-arg amsgrad=true --train --layer '!fc'""",
    ],
    ids=lambda line: line.split(maxsplit=2)[0],
)
def test_the_command_on_the_page_makes_the_same_file_again(run, repo, tmp_path, line) -> None:
    made, words = [], shlex.split(line)
    for folder in (tmp_path / "first", tmp_path / "again"):
        folder.mkdir()
        (folder / "net.py").write_text(MODEL)
        shutil.copy(repo / "sample_models" / "five.png", folder / "my five.png")
        done = run(*words, "-o", "a.safetensors", cwd=folder)
        assert done.rc == 0, done.stderr
        made.append((folder / "a.safetensors").read_bytes())
        page = hookscope.report(folder / "a.safetensors").html
        shown = re.search('<pre class="command"><code>(.*?)</code>', page, re.DOTALL)
        assert shown, "no command is on the page"
        _, *words = shlex.split(html.unescape(shown[1]))
    assert made[0] == made[1]
