"""Models from sources that other packages register; see docs/models.md."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

from torch import nn

from hookscope.errors import EnvironmentFault, HookscopeError, ModelError
from hookscope.sources import arguments
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo
from hookscope.sources.weights import load_file_into
from hookscope.specs.model_spec import end_sentence, is_weights_file, plugin_entry_points
from hookscope.tensors.seeding import seeded_torch


def load(request: LoadRequest) -> LoadedModel:
    """Load a model from the source that is registered for the spec's prefix."""
    spec, weights, meta = request.spec, request.weights, request.meta
    entry = plugin_entry_points()[spec.path]
    name = spec.text.partition(":")[2]
    from_file = is_weights_file(weights.spec) and not meta
    keywords = arguments.convert_arguments(dict, request.model_args)  # without annotations
    with seeded_torch(request.seed), redirect_stdout(sys.stderr):
        function = _function(entry)
        named_weights = "random" if from_file else weights.spec
        try:
            loaded = function(
                name, weights=named_weights, model_args=keywords, seed=request.seed, meta=meta
            )
        except HookscopeError:
            raise
        except (Exception, SystemExit) as exc:
            raise ModelError(
                f"{_describe(entry)} could not load {name!r}: {type(exc).__name__}:"
                f" {end_sentence(str(exc))}",
                "HOOKSCOPE_DEBUG=1 shows the whole traceback.",
            ) from exc
    if isinstance(loaded, nn.Module):
        info = WeightsInfo("none" if meta else named_weights)
        loaded = LoadedModel(loaded.eval(), spec.text, spec.name, entry.name, weights=info)
    if not isinstance(loaded, LoadedModel):
        raise ModelError(
            f"{_describe(entry)} returned a {type(loaded).__name__} for {name!r}, not a model.",
            "It must return an nn.Module or a hookscope.LoadedModel.",
        )
    if from_file:
        return replace(loaded, weights=load_file_into(loaded.module, weights))
    return loaded


def _function(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as exc:  # any error of a broken package
        raise EnvironmentFault(
            f"{_describe(entry)} cannot be imported: {type(exc).__name__}:"
            f" {end_sentence(str(exc))}",
            "Fix or uninstall that package.",
        ) from exc


def _describe(entry: EntryPoint) -> str:
    package = f" by {entry.dist.name}" if entry.dist else ""
    return f"The source {entry.name!r}, registered{package} as {entry.value},"
