"""Which of the two sides of a comparison are weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hookscope.errors import RequestError
from hookscope.files.output_path import holds_features, is_hookscope_file
from hookscope.stores.weights.open_weights import is_weights
from hookscope.stores.weights.weight_set import WeightSet


def weight_sides(a: Any, b: Any) -> tuple[bool, bool]:
    """Return for A and B whether it is a file or folder of weights, or an opened one."""
    sides = _are_weights(a), _are_weights(b)
    if sides[0] != sides[1]:
        weights, other = (a, b) if sides[0] else (b, a)
        kind = ""
        if isinstance(other, str | os.PathLike):
            if is_hookscope_file(Path(other)):
                kind = "a capture"
            elif holds_features(other):
                kind = "a features folder"
        if kind:
            name = weights.label if isinstance(weights, WeightSet) else weights
            raise RequestError(
                f"{other} is {kind} and {name} contains weights; diff compares two of the same"
                " kind.",
                "Name two files of weights, or a model and a file of weights.",
            )
    return sides


def _are_weights(side: Any) -> bool:
    if isinstance(side, WeightSet):
        return True
    return isinstance(side, str | os.PathLike) and is_weights(os.fspath(side))
