"""Comparison of weights with the values that a model has when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookscope.execution.prepare import find_model
from hookscope.file_analysis.weights.weight_comparison import compare_weights
from hookscope.file_analysis.weights.weight_diff import WeightDiff
from hookscope.files.progress import Progress
from hookscope.hooks.layers import check_not_lazy
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.model_weights import model_weights
from hookscope.specs.weight_diff_options import InitialWeights, WeightDiffOptions
from hookscope.stores.weights.weight_set import WeightSet

_ORIGINS = {
    "random": "initial values, seed {0}",
    "as built": "values as built, seed {0}",
    "as saved": "values as saved",
    "as given": "values as given",
}


def compare_with_model(
    a: Any,
    b: Any,
    initial: InitialWeights,
    options: WeightDiffOptions,
    progress: Progress | None = None,
) -> WeightDiff:
    """Compare the parameters and saved buffers of a model with weights, by name."""
    weights = a if initial.side else b
    loaded = find_model(initial.request, initial.seed)
    check_not_lazy(loaded.module)
    model = _weights_of(loaded, initial.seed)
    sides, rename = (model, weights), options.rename
    if isinstance(rename, Mapping):  # as with --weights FILE, it is about names in the file
        options = replace(options, rename=({}, rename) if initial.side == 0 else (rename, {}))
    if initial.side:
        sides = weights, model
    return compare_weights(*sides, options, progress)


def _weights_of(loaded: LoadedModel, seed: int) -> WeightSet:
    name = loaded.weights.name
    kind = _ORIGINS.get(name, f"weights {name}").format(seed)
    return model_weights(loaded.module, loaded.spec, kind)
