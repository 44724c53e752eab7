"""What a function is asked about: a model, a capture, features, a training run or weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookscope.errors import RequestError
from hookscope.files.output_path import (
    holds_features,
    is_hookscope_file,
    is_run_folder,
    runs_in,
)
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.subject_kinds import CAPTURES, FEATURES, MODELS, RUNS, WEIGHTS, Subject

if TYPE_CHECKING:
    from hookscope.stores.weights.weight_set import WeightSet


def subject_of(source: Any) -> Subject:
    """Return what a source is, by what is on disk. Nothing is opened, and no code of a file runs.

    Example:
        >>> subject_of("sample_models/digits.safetensors")
        Subject(kind='weights', label='sample_models/digits.safetensors has only weights')
        >>> subject_of("resnet18").kind, subject_of("sample_models/run").kind
        ('models', 'training runs')
    """
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        if is_run_folder(source):
            return Subject(RUNS, f"{name} is the folder of a training run")
        if runs_in(source):
            return Subject(RUNS, f"{name} is a folder of training runs")
        if holds_features(source):
            return Subject(FEATURES, f"{name} is a features folder")
        if is_hookscope_file(Path(source)):
            return Subject(CAPTURES, f"{name} is a capture")
    elif hasattr(source, "records"):
        return Subject(CAPTURES, "this is a capture in memory")
    if label := label_of_weights(source):
        return Subject(WEIGHTS, f"{label} has only weights")
    return Subject(MODELS, f"{source} is a model")


def find_subject(given: Mapping[str, Any]) -> Subject:
    """Return what the first argument of a function is.

    A torchvision name such as resnet18 always means the model, even if a folder has that name.
    """
    from hookscope.stores.weights.open_weights import names_torchvision_model

    model = given.get("model", given.get("file", DEFAULT_MODEL))
    is_model = "model" in given or "file" not in given
    if is_model and isinstance(model, str) and names_torchvision_model(model):
        return Subject(MODELS, f"{model} is a model")
    return subject_of(model)


def as_weights(source: Any, trust: bool = False) -> WeightSet | None:
    """Return the weights that are given, opened, with ``trust`` by running code; else None.

    Example:
        >>> as_weights("sample_models/digits.safetensors").parameters, as_weights("resnet18")
        (9930, None)
    """
    from hookscope.stores.weights.open_weights import open_weights
    from hookscope.stores.weights.weight_set import WeightSet

    if isinstance(source, WeightSet):
        return source
    if not label_of_weights(source):
        return None
    if trust:
        from hookscope.sources.pickled_model import open_trusted_weights

        return open_trusted_weights(os.fspath(source))
    return open_weights(source)


def label_of_weights(source: Any) -> str:
    """Return the name of weights for messages; empty for anything else. Nothing is opened."""
    from hookscope.stores.weights.open_weights import is_weights
    from hookscope.stores.weights.weight_set import WeightSet

    if isinstance(source, WeightSet):
        return source.label
    check_no_state_dict(source)
    is_path = isinstance(source, str | os.PathLike) and is_weights(os.fspath(source))
    return os.fspath(source) if is_path else ""


def check_trust(source: Any) -> None:
    """Raise RequestError if the source of a request with ``trust`` is a result: it has no code."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "a capture in memory"
    if subject_of(source).kind in (MODELS, WEIGHTS):
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
