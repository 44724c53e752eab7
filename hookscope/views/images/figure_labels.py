"""Labels of figures: the quantity, a shape, the model and the input, ranges of numbers."""

from __future__ import annotations

import os
from typing import Any

from hookscope.results.metadata import has_random_weights
from hookscope.specs.tensor_key import ATTENTION, PARAM_UPDATE, UNEDITED, WEIGHT, is_gradient


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
        caption += "" if str(model["weights"]).startswith("as ") else " weights"
        caption += " (untrained)" if has_random_weights(metadata) else ""
    inputs = metadata.get("inputs") or ()
    # One spec may give several tensors, such as the ids of a text and their mask.
    specs = dict.fromkeys(str(entry.get("spec", "")) for entry in inputs)
    names = [os.path.basename(spec) for spec in specs]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        caption += f"; input: {names[0]}{more}"
    return caption
