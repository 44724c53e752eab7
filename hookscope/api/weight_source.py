"""Weights as the functions of hookscope take them: a path, or a set that is already open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hookscope.errors import RequestError
from hookscope.results.weights.open_weights import is_weights, open_weights
from hookscope.results.weights.weight_set import WeightSet


def as_weights(source: Any, trust: bool = False) -> WeightSet | None:
    """Return the weights that are given, opened; None for anything else.

    Args:
        source: a file, a folder, an index, a part of a checkpoint, the result of ``load``, or
            something that is not weights.
        trust: build a pickled model, which runs code, and take its state dict.

    Raises:
        RequestError, WeightsFileError: as ``open_weights``.
        RequestError: a dict is given, such as a state dict.
        ModelError: with ``trust``, the code of the file raised.

    Example:
        >>> as_weights("sample_models/digits.safetensors").parameters, as_weights("resnet18")
        (9930, None)
    """
    if isinstance(source, WeightSet):
        return source
    check_no_state_dict(source)
    if not isinstance(source, str | os.PathLike) or not is_weights(os.fspath(source)):
        return None
    if trust:
        from hookscope.sources.pickled_weights import open_trusted_weights

        return open_trusted_weights(os.fspath(source))
    return open_weights(source)


def check_no_state_dict(source: Any) -> None:
    """Raise RequestError if a dict is given, such as a state dict. A capture is none."""
    if isinstance(source, Mapping) and not hasattr(source, "records"):
        raise RequestError(
            f"A value of type {type(source).__name__} is neither a file nor a capture, a model or"
            " open weights.",
            "Save a state dict with torch.save, and give the path of the file.",
        )
