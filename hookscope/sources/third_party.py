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
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.weights import load_file_into
from hookscope.specs.model_spec import ModelSpec, end_sentence, is_weights_file, plugin_entry_points
from hookscope.tensors.seeding import seeded_torch


def load(
    spec: ModelSpec, *, weights: WeightsRequest, model_args: dict[str, Any], seed: int, meta: bool
) -> LoadedModel:
    """Ask the source that is registered for the word's prefix; see ``hookscope.sources.model_loader``.

    A file of weights is read here, so that no source needs to; it is then asked for random ones.
    """
    entry = plugin_entry_points()[spec.path]
    word = spec.word.partition(":")[2]
    from_file = is_weights_file(weights.word) and not meta
    given = arguments.convert_arguments(dict, model_args)  # nothing is known of what they are for
    with seeded_torch(seed), redirect_stdout(sys.stderr):
        function = _function(entry)
        asked = "random" if from_file else weights.word
        try:
            made = function(word, weights=asked, model_args=given, seed=seed, meta=meta)
        except HookscopeError:
            raise
        except (Exception, SystemExit) as exc:
            raise ModelError(
                f"{_who(entry)} could not load {word!r}: {type(exc).__name__}: {end_sentence(str(exc))}",
                "HOOKSCOPE_DEBUG=1 shows the whole traceback.",
            ) from exc
    if isinstance(made, nn.Module):
        info = WeightsInfo("none" if meta else asked)
        made = LoadedModel(made.eval(), spec.word, spec.name, entry.name, weights=info)
    if not isinstance(made, LoadedModel):
        raise ModelError(
            f"{_who(entry)} gave a {type(made).__name__} for {word!r}, not a model.",
            "It is to return an nn.Module or a hookscope.LoadedModel.",
        )
    if from_file:
        return replace(made, weights=load_file_into(made.module, weights))
    return made


def _function(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as exc:  # whatever a broken package raises as it is imported
        raise EnvironmentFault(
            f"{_who(entry)} cannot be imported: {type(exc).__name__}: {end_sentence(str(exc))}",
            "Mend that package, or uninstall it.",
        ) from exc


def _who(entry: EntryPoint) -> str:
    package = f" by {entry.dist.name}" if entry.dist else ""
    return f"The source {entry.name!r}, registered{package} as {entry.value},"
