"""Weights as the functions of hookscope take them: a path, or a set that is already open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookscope.errors import RequestError
from hookscope.files.output_path import holds_features, is_hookscope_file, is_run_folder
from hookscope.stores.weights.open_weights import is_weights, open_weights
from hookscope.stores.weights.weight_set import WeightSet


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
    if not label_of_weights(source):
        return None
    if trust:
        from hookscope.sources.pickled_model import open_trusted_weights

        return open_trusted_weights(os.fspath(source))
    return open_weights(source)


def label_of_weights(source: Any) -> str:
    """Return the name of weights for messages; empty for anything else. Nothing is opened.

    A request is checked with it before ``as_weights`` may run code of a file.

    Raises:
        RequestError: a dict is given, such as a state dict.

    Example:
        >>> label_of_weights("sample_models/digits.safetensors"), label_of_weights("resnet18")
        ('sample_models/digits.safetensors', '')
    """
    if isinstance(source, WeightSet):
        return source.label
    check_no_state_dict(source)
    is_path = isinstance(source, str | os.PathLike) and is_weights(os.fspath(source))
    return os.fspath(source) if is_path else ""


def check_trust(source: Any) -> None:
    """Raise RequestError if the source of a request with ``trust`` is a result of hookscope.

    A result has no code to run. Anything else passes: what opens it says what is wrong with it.
    """
    name = "a capture in memory"
    if label_of_weights(source):
        return
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        is_result = is_hookscope_file(Path(name)) or is_run_folder(name) or holds_features(name)
        if not is_result:
            return
    raise RequestError(f"--trust is for weights, and {name} is a result.", "Leave it out.")


def check_no_state_dict(source: Any) -> None:
    """Raise RequestError if a dict is given, such as a state dict. A capture is none."""
    if isinstance(source, Mapping) and not hasattr(source, "records"):
        raise RequestError(
            f"A value of type {type(source).__name__} is neither a file nor a capture, a model or"
            " open weights.",
            "Save a state dict with torch.save, and give the path of the file.",
        )
