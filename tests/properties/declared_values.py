"""For each declared option of a command, texts that are right and texts that are wrong."""

from __future__ import annotations

import shlex
from typing import Any

import hookscope
from hookscope.cli.main import cli
from hookscope.specs.settings import Setting
from tests.properties.minimal_requests import REQUESTS
from tests.properties.python_calls import type_of

# These are what is run, or would take long or need another machine.
NOT_DRAWN = {"model", "input", "shape", "workers", "device_map", "memory", "generate"}
_PARSED = {
    "shape": (["1x1x8x8"], ["x", "3x", "0"]),
    "bytes": (["100000000"], ["many"]),
    "size": (["8", "8x6"], ["0", "1x2x3"]),
    "numbers": (["0.5"], ["red"]),
}
# What the declaration does not tell: names of layers, classes, files and functions.
_NAMES = {
    "layers": (["*"], ["nosuch", "!*", "a{b"]),
    "target": (["1", "argmax"], ["99", "nosuch"]),
    "loss": (["sum", "logit"], ["nosuch", "net.py:nosuch"]),
    "edits": (["*=scale:2"], ["nosuch=zero", "x", "*=nosuch"]),
    "hooks": (["net.py:hook"], ["net.py:nosuch", "nosuch"]),
    "weights": ([], ["nosuch.safetensors", "sample_models/digits.safetensors"]),
    "device": ([], ["cuda:9"]),
}


def first_request(command: str) -> str:
    """The request of the first source that the command accepts."""
    return next(words for pair, words in REQUESTS.items() if pair[0] == command)


def values_of(name: str, every: bool = False) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each declared option the ways to type it rightly, and wrongly."""
    settings = getattr(getattr(hookscope, name), "settings", {})
    right, wrong = {}, {}
    for option in cli.commands[name].options():
        about = settings.get(option.name)
        if about is not None and (
            option.name not in NOT_DRAWN or (every and option.name not in ("model", "input"))
        ):
            good, bad = texts_of(about, type_of(name, option.name))
            named = _NAMES.get(option.name, ([], [])) if not every else ([], [])
            for ways, texts in ((right, good + named[0]), (wrong, bad + named[1])):
                ways[option.name] = [
                    shlex.join([f"--{option.key}", *[text][: not option.is_flag]]) for text in texts
                ]
    return right, wrong


def texts_of(about: Setting, kind: str) -> tuple[list[str], list[str]]:
    """Texts for an option that its declaration allows, at its bounds too, and others."""
    good: list[Any] = []
    bad: list[Any] = []
    if kind.startswith("bool"):
        return [""], []
    if about.choices:
        first, *others = about.choices
        good, bad = [first, *others], ["nosuch", first[:-1], first.upper()]
        if about.commas:
            good, bad = [*good, ",".join([first, *others[:1]])], [*bad, f"{first},nosuch", ""]
    elif about.parse is not None:
        good, bad = _PARSED.get(about.kind, (["0", "0,1", "0-2"], ["x", "0,x"]))
    elif kind.startswith("int") and "str" not in kind:
        least, most = about.minimum, about.maximum
        good, bad = ["1", "2", "5"], ["x", "1.5"]
        if least is not None:
            good, bad = [str(least), str(least + 1)], [*bad, str(least - 1)]
        if most is not None:
            good, bad = [*good, str(most)], [*bad, str(most + 1)]
    elif kind.startswith("float"):
        good, bad = ["0.5", "1", "0.001", "0"], ["x", "1,5", "nan", "-1", "inf"]
    elif about.file or not about.collect:
        bad = ["nosuch"]
    return list(good), list(bad)
