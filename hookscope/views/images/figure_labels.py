"""Labels of figures: the quantity, a shape, the model and the input, ranges of numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hookscope.results.metadata import has_random_weights
from hookscope.specs.record_kinds import ATTENTION, PARAM_UPDATE, UNEDITED, WEIGHT, is_gradient


def quantity_name(kind: str) -> str:
    """Return the quantity in a record of this kind, for an axis.

    Example:
        >>> quantity_name("output"), quantity_name("param.grad")
        ('value', 'gradient')
    """
    if is_gradient(kind):
        return "gradient"
    names = {ATTENTION: "attention weight", PARAM_UPDATE: "update", WEIGHT: "weight"}
    return names.get(kind.removesuffix(UNEDITED), "value")


def shape_label(shape: Sequence[int]) -> str:
    """Return a shape as ``1x3x8x8``."""
    return "x".join(map(str, shape)) or "a single number"


def recording_caption(metadata: dict[str, Any]) -> str:
    """Return the model and the input of a recording.

    Example:
        >>> model = {"spec": "vgg11", "weights": "random"}
        >>> recording_caption({"model": model, "inputs": [{"spec": "noise"}]})
        'vgg11, random weights (untrained); input: noise'
    """
    model = metadata.get("model") or {}
    caption = os.path.basename(str(model.get("spec", "an unnamed model")))
    if "weights" in model:
        # The name of the weights may be a file, or a phrase such as "as built".
        caption += f", {os.path.basename(str(model['weights']))}"
        caption += "" if "as " in str(model["weights"]) else " weights"
        caption += " (untrained)" if has_random_weights(metadata) else ""
    inputs = metadata.get("inputs") or ()
    # One spec may give several tensors, such as the ids of a text and their mask.
    specs = dict.fromkeys(str(entry.get("spec", "")) for entry in inputs)
    names = [os.path.basename(spec) for spec in specs]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        caption += f"; input: {names[0]}{more}"
    return caption


def ranges_text(numbers: Sequence[int]) -> str:
    """Return numbers with commas between, consecutive ones as a range.

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
