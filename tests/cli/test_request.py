"""The command line and Python ask for the same thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hookscope
from hookscope.cli.request_builder import OPTIONS, build_part, build_request
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.input_spec import parse_inputs
from hookscope.specs.request import Request

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


class Stop(Exception):
    """Ends a function once it has made what is looked at."""


def made_in_python(call: Callable[[], Any], *classes: type) -> list[Any]:
    """What of ``classes`` a call makes of its keywords, in their order."""
    made: dict[type, Any] = {}

    def remembering(kind: type, make: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **keywords: Any) -> None:
            make(self, *args, **keywords)
            made[kind] = self
            if len(made) == len(classes):
                raise Stop

        return init

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        for kind in classes:
            patch.setattr(kind, "__init__", remembering(kind, kind.__init__))
        call()
    return [made[kind] for kind in classes]


@pytest.mark.parametrize(("command", "words", "keywords"), CASES)
def test_options_and_keywords_make_the_same_request(
    parse, command: str, words: list[str], keywords: dict[str, Any], repo: Path
) -> None:
    model = f"{repo}/{DIGITS}"
    params = parse(command, model, *words).params
    classes = [Request, *([OPTIONS[command]] if command in OPTIONS else [])]
    request, *options = made_in_python(
        lambda: getattr(hookscope, command)(model, **keywords), *classes
    )
    built = build_request(command, params)
    if command == "gradcheck":  # which always runs in float64, and may make several inputs
        assert (request.model, request.run.seed) == (built.model, built.run.seed)
    else:
        assert request == built
    if command == "capture" and "stop" not in keywords:  # the only default that differs
        assert params.pop("stop") is None
    assert options == [build_part(kind, params) for kind in classes[1:]]


def test_every_command_that_runs_one_model_is_compared() -> None:
    assert {command for command, _, _ in CASES} >= set(OPTIONS)


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
    [request] = made_in_python(
        lambda: hookscope.diff(model, model, **keywords, **strict), DiffRequest
    )
    params = parse("diff", model, model, *words).params
    assert params.pop("more") == ()  # runs alone may be more than two
    assert request == DiffRequest(**params)
