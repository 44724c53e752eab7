"""The command line and Python ask for the same thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hookscope
from hookscope.cli.request_builder import build_request
from hookscope.specs.request import Request

DIGITS = "sample_models/digits.py:trained"


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        (["--layer", "conv*", "--layer", "!conv2"], {"layers": ["conv*", "!conv2"]}),
        (["--type", "Conv2d", "--depth", "1", "--leaves"], {"types": "Conv2d", "depth": 1}),
        (["--input", "zeros:1x1x8x8"], {"input": ["zeros:1x1x8x8"]}),
        (["--shape", "1x1x8x8", "--seed", "3", "--train"], {"shape": (1, 1, 8, 8), "seed": 3}),
        (["--edit", "conv1=zero", "--compare"], {"edits": "conv1=zero", "compare": True}),
    ],
)
def test_options_and_keywords_make_the_same_request(
    parse, words: list[str], keywords: dict[str, Any], repo: Path
) -> None:
    model = f"{repo}/{DIGITS}"
    flags = {name: True for name in ("leaves", "train") if f"--{name}" in words}
    ctx = parse("capture", model, *words)
    made: list[Request] = []
    from hookscope.api import capture

    def remember(request: Request, **ignored: Any) -> Any:
        made.append(request)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(capture, "prepare", remember)
        hookscope.capture(model, **keywords, **flags)
    assert made == [build_request("capture", ctx.params)]
