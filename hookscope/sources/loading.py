"""From a model's word to a loaded model. A source is imported only when its name is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from torch import nn

from hookscope.sources import catalog
from hookscope.sources.loaded import LoadedModel, WeightsInfo
from hookscope.spec import FILE, TORCHVISION

LIVE = "live"  # the source of a module that was given and not loaded

# Each module has a function load(spec, *, weights, model_args, seed, meta) -> LoadedModel.
_SOURCES = {
    TORCHVISION: "hookscope.sources.torchvision",
    FILE: "hookscope.sources.pyfile",
}


def load(
    word: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] = "random",
    model_args: Mapping[str, Any] | None = None,
    seed: int = 0,
    meta: bool = False,
) -> LoadedModel:
    """Load the model that ``word`` names, in eval mode on the CPU.

    Args:
        word: a torchvision name, or ``FILE.py:NAME`` for what that file calls NAME: a subclass
            of ``nn.Module``, a function that returns a model, or a model that is built already.
        weights: ``random`` (from the seed), ``default`` or another name of torchvision's pretrained
            weights (downloaded unless cached), or a ``.safetensors``, ``.pth`` or ``.pt`` file.
        model_args: keyword arguments for the class or factory.
        seed: of the random weights. The global random state is left as it was.
        meta: build on the meta device, without memory for parameters and without weights, where
            the source can.

    Raises:
        ModelError: the word names no model, or the model cannot be built.
        RequestError: a weights word names no file and no pretrained weights.
        WeightsError: the weights cannot be read or fetched, or do not fit.
        EnvironmentFault: torchvision is missing or does not match torch.

    Example:
        >>> load("resnet18", meta=True).module.fc
        Linear(in_features=512, out_features=1000, bias=True)
    """
    word, weights = os.fspath(word), os.fspath(weights)
    spec = catalog.check(word)
    source = import_module(_SOURCES[spec.source])
    loaded = source.load(
        spec, weights=weights, model_args=dict(model_args or {}), seed=seed, meta=meta
    )
    return cast(LoadedModel, loaded)


def wrap(module: nn.Module) -> LoadedModel:
    """Return a live module as a loaded model; it keeps its mode, weights and device."""
    name = type(module).__name__
    return LoadedModel(module, name, name, LIVE, weights=WeightsInfo("as given"))
