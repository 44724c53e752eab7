"""Whole models saved by ``torch.save(model, FILE)``, opened for ``--trust`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hookscope.errors import ModelError, RequestError
from hookscope.files.background_hash import BackgroundHash
from hookscope.files.shell_words import quote_word
from hookscope.files.weight_files import blake3_of
from hookscope.sources import weights as weight_files
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.pickled_weights import unpickle_trusted
from hookscope.specs.catalog import no_weights_by_name
from hookscope.specs.model_spec import ModelSpec, is_weights_file


def load(
    spec: ModelSpec,
    *,
    weights: WeightsRequest,
    model_args: dict[str, Any],
    seed: int,
    meta: bool,
) -> LoadedModel:
    """Open the file that ``spec`` names; see ``hookscope.sources.model_loader.load``.

    ``seed`` and ``meta`` are ignored: the file has the values. The model is the whole content of
    the file, or the only module in a mapping.
    """
    if model_args:
        raise RequestError(
            f"{spec.text!r} contains a model that is already built, which takes no arguments.",
            "Leave out --model-arg.",
        )
    content, _ = unpickle_trusted(spec.path)
    module = _only_module(content, spec.path)
    info = WeightsInfo("as saved", BackgroundHash(blake3_of, spec.path))
    if weights.spec != "random":
        if not is_weights_file(weights.spec):
            raise no_weights_by_name(weights.spec)
        info = weight_files.load_file_into(module, weights)
    return LoadedModel(module.eval(), spec.text, spec.name, spec.source, weights=info)


def _only_module(content: Any, path: str) -> nn.Module:
    if isinstance(content, nn.Module):
        return content
    inner = list(content.values()) if isinstance(content, Mapping) else []
    modules = [value for value in inner if isinstance(value, nn.Module)]
    if len(modules) == 1:
        return modules[0]
    what = f"{len(modules)} models" if modules else f"a {type(content).__name__} without a model"
    raise ModelError(
        f"{path!r} contains {what}.",
        f"List its tensors: hookscope tree {quote_word(path)} --trust",
    )
