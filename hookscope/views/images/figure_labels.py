"""What stands beside the numbers in a picture: what they are, their shape, where they came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hookscope.errors import EnvironmentFault
from hookscope.specs.record_kinds import ATTENTION, PARAM_UPDATE, UNEDITED


def quantity_name(kind: str) -> str:
    """Return what a record of this kind holds, for an axis.

    Example:
        >>> quantity_name("output"), quantity_name("param.grad")
        ('value', 'gradient')
    """
    kind = kind.removesuffix(UNEDITED)
    if kind.endswith(".grad"):
        return "gradient"
    return {ATTENTION: "attention weight", PARAM_UPDATE: "update"}.get(kind, "value")


def shape_label(shape: Sequence[int]) -> str:
    """Return a shape as it is typed: ``1x3x8x8``."""
    return "x".join(map(str, shape)) or "a single number"


def recording_caption(metadata: dict[str, Any]) -> str:
    """Return the model and the input that a recording tells of.

    Example:
        >>> about({"model": {"word": "vgg11", "weights": "random"}, "inputs": [{"word": "noise"}]})
        'vgg11, random weights; input: noise'
    """
    model = metadata.get("model") or {}
    told = os.path.basename(str(model.get("word", "an unnamed model")))
    if "weights" in model:
        # The word may be a file, or tell by itself that the weights are as the file built them.
        told += f", {os.path.basename(str(model['weights']))}"
        told += "" if "as " in str(model["weights"]) else " weights"
    words = [os.path.basename(str(one.get("word", ""))) for one in metadata.get("inputs") or ()]
    if words:
        more = f" and {len(words) - 1} more" if len(words) > 1 else ""
        told += f"; input: {words[0]}{more}"
    return told


def ranges_text(numbers: Sequence[int]) -> str:
    """Return numbers with commas between, those in a row as a range.

    Example:
        >>> ranges_text([3, 1]), ranges_text([0, 1, 2, 3, 9])
        ('3, 1', '0-3, 9')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@contextmanager
def require_matplotlib() -> Iterator[None]:
    """Turn a failed import of matplotlib inside the block into a sentence.

    Raises:
        EnvironmentFault: matplotlib is not installed, or does not load.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise EnvironmentFault(
            f"Pictures are drawn with matplotlib, which does not load: {error}.",
            "Install it: pip install matplotlib (hookscope[plot] brings it along).",
        ) from error
