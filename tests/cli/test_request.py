"""The command line and Python ask for the same thing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import hookscope
from hookscope.commands.public import Given
from hookscope.specs.input_spec import parse_inputs

DIGITS = "sample_models/digits.py:trained"
CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("capture", ["--layer", "conv*", "--layer", "!conv2"], {"layers": ["conv*", "!conv2"]}),
    (
        "capture",
        ["--type", "Conv2d", "--depth", "1", "--leaves"],
        {"types": "Conv2d", "depth": 1, "leaves": True},
    ),
    ("capture", ["--stop"], {"stop": True}),
    ("capture", ["--no-stop"], {"stop": False}),
    ("capture", ["--input", "zeros:1x1x8x8"], {"input": parse_inputs(["zeros:1x1x8x8"])}),
    (
        "capture",
        ["--shape", "1x1x8x8", "--seed", "3", "--train"],
        {"shape": (1, 1, 8, 8), "seed": 3, "train": True},
    ),
    ("capture", ["--edit", "conv1=zero", "--compare"], {"edits": "conv1=zero", "compare": True}),
    (
        "capture",
        ["--what", "input,output", "--ops", "--generate", "3", "--max-bytes", "1MB"],
        {"what": ("input", "output"), "ops": True, "generate": 3, "max_bytes": 10**6},
    ),
    (
        "grads",
        ["--loss", "kl", "--target", "3", "--grad-edit", "conv1=zero", "--device-map", "auto"],
        {"loss": "kl", "target": "3", "grad_edits": "conv1=zero", "device_map": "auto"},
    ),
    (
        "grads",
        ["--hook", "fc=os:fspath", "--hook-kind", "backward", "--hook-arg", "by=2", "--verify"],
        {
            "hooks": ["fc=os:fspath"],
            "hook_kind": "backward",
            "hook_args": {"by": "2"},
            "verify": True,
        },
    ),
    (
        "step",
        ["--optimizer", "adam", "--lr", "0.5", "--opt-arg", "weight_decay=0.1"],
        {"optimizer": "adam", "lr": 0.5, "opt_args": {"weight_decay": "0.1"}},
    ),
    (
        "ablate",
        ["--by", "mean", "--channels", "--rank", "loss", "--layer", "conv*"],
        {"by": "mean", "channels": True, "rank": "loss", "layers": "conv*"},
    ),
    (
        "sweep",
        ["--edit", "scale:2", "--positions", "0,-1", "--against", "3", "--metric", "kl"],
        {"edit": "scale:2", "positions": "0,-1", "against": "3", "metric": "kl"},
    ),
    (
        "lens",
        ["--norm", "ln", "--target", "7", "--layer", "conv*"],
        {"norm": "ln", "target": "7", "layers": "conv*"},
    ),
    (
        "attribute",
        ["--by", "occlusion", "--against", "7", "--baseline", "3", "--position", "-2"],
        {"by": "occlusion", "against": "7", "baseline": "3", "position": -2},
    ),
    (
        "cam",
        ["--by", "layercam", "--layer", "conv2", "--target", "6"],
        {"by": "layercam", "layer": "conv2", "target": "6"},
    ),
    ("trace", ["--forward-only", "--depth", "1"], {"forward_only": True, "depth": 1}),
    (
        "check",
        ["--only", "nan,inf", "--dead", "0.5", "--dtype", "float64"],
        {"only": ("nan", "inf"), "dead": 0.5, "dtype": "float64"},
    ),
    ("gradcheck", ["--eps", "1e-4", "--shape", "2x3"], {"eps": 1e-4, "shape": ((2, 3),)}),
    (
        "extract",
        ["--reduce", "mean", "--batch", "4", "--rename", "a=b"],
        {"reduce": "mean", "batch": 4, "rename": {"a": "b"}},
    ),
    ("tree", ["--type", "Conv2d", "--method", "forward"], {"types": "Conv2d", "method": "forward"}),
    ("filters", ["conv1", "--seed", "3"], {"layer": "conv1", "seed": 3}),
]


def asked_of(function: Any, *args: Any, **keywords: Any) -> dict[str, Any]:
    """The groups that a function makes of its keywords, and its other parameters."""
    parameters = inspect.signature(function).parameters
    known = {name: value for name, value in keywords.items() if name in parameters}
    values = function.checked(*args, **known).values
    return {
        name: value.make() if isinstance(value, Given) else value
        for name, value in values.items()
        if name not in parameters or value != parameters[name].default
    }


@pytest.mark.parametrize(("command", "words", "keywords"), CASES)
def test_options_and_keywords_make_the_same_request(
    parse, command: str, words: list[str], keywords: dict[str, Any], repo: Path
) -> None:
    model = f"{repo}/{DIGITS}"
    parameters = parse(command, model, *words).params
    if command == "capture" and "stop" not in keywords:  # the only default that differs
        assert parameters.pop("stop") is None
    function = getattr(hookscope, command)
    assert asked_of(function, **parameters) == asked_of(function, model, **keywords)


def test_every_command_that_runs_one_model_is_compared() -> None:
    several = {"diff"}  # compared below
    functions = [name for name in hookscope.__all__ if hasattr(getattr(hookscope, name), "checked")]
    of_models = {
        name
        for name in functions
        if "model_args" in inspect.signature(getattr(hookscope, name)).parameters
    }
    assert {command for command, _, _ in CASES} == of_models - several


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        (["--dtype", "float32", "--dtype", "float64"], {"dtype": ("float32", "float64")}),
        (["--layer", "conv*", "--what", "input"], {"layers": ("conv*",), "what": ("input",)}),
        (["--atol", "0.1", "--map", "a=b", "--strict"], {"atol": 0.1, "map": {"a": "b"}}),
        (["--shape", "1x1x8x8", "--seed", "3"], {"shape": (1, 1, 8, 8), "seed": 3}),
    ],
)
def test_options_and_keywords_make_the_same_comparison(
    parse, words: list[str], keywords: dict[str, Any], repo: Path
) -> None:
    model = f"{repo}/{DIGITS}"
    strict = {"strict": True} if "--strict" in words else {}
    parameters = parse("diff", model, model, *words).params
    assert parameters.pop("more") == ()  # runs alone may be more than two
    known = {
        k: v for k, v in parameters.items() if k in inspect.signature(hookscope.diff).parameters
    }
    by_shell = hookscope.diff.checked(**known).values["options"].make(a=model, b=model)
    asked = hookscope.diff.checked(model, model, **keywords, **strict).values["options"]
    assert by_shell == asked.make(a=model, b=model)
