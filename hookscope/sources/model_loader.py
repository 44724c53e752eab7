"""From a model's word to a loaded model. A source is imported only when its name is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

from hookscope.errors import ModelError, RequestError
from hookscope.sources.live import as_hookable
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.wrappers import unwrapped
from hookscope.specs import catalog
from hookscope.specs.model_spec import (
    EXPORTED,
    FILE,
    LIVE,
    MODULE,
    PLUGIN,
    TIMM,
    TORCHSCRIPT,
    TORCHVISION,
    TRANSFORMERS,
    is_weights_file,
)
from hookscope.specs.suggestions import did_you_mean

FORWARD = "forward"

# Each module has a function load(spec, *, weights, model_args, seed, meta) -> LoadedModel; that of
# TorchScript takes method as well, that of exported programs trust, that of transformers attn.
_SOURCES = {
    TORCHVISION: "hookscope.sources.torchvision",
    FILE: "hookscope.sources.python_file",
    MODULE: "hookscope.sources.python_file",
    TIMM: "hookscope.sources.timm",
    TRANSFORMERS: "hookscope.sources.transformers.transformers_source",
    PLUGIN: "hookscope.sources.third_party",
    TORCHSCRIPT: "hookscope.sources.torchscript.torchscript_source",
    EXPORTED: "hookscope.sources.exported.exported_source",
}


def load(
    word: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    seed: int = 0,
    meta: bool = False,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
) -> LoadedModel:
    """Load the model that ``word`` names, in eval mode on the CPU.

    Args:
        word: a torchvision name, or ``FILE.py:NAME`` or ``package.module:NAME`` for what that file
            or module calls NAME: a subclass of ``nn.Module``, a function that returns a model, or a
            model that is built already; or ``timm:NAME``; or ``hf:FOLDER``, ``hf:config.json`` or
            ``hf:NAME`` for a model of transformers; or a file made by ``torch.jit.save`` or
            ``torch.export.save``; or what another package has registered a prefix for.
        weights: ``random`` (from the seed), ``default`` or another name of pretrained weights
            (downloaded unless cached), or a ``.safetensors``, ``.pth`` or ``.pt`` file. A ``hf:``
            folder that holds weights brings them along, and ``random`` means those.
        rename: prefixes of names in that file and what stands for them in the model.
        partial: take from the file what fits and leave the rest as built.
        model_args: keyword arguments for the class or factory; of a ``hf:`` model values of its
            configuration.
        seed: of the random weights. The global random state is left as it was.
        meta: build on the meta device, without memory for parameters and without weights, where
            the source can.
        method: run this method of the model in place of ``forward``.
        attn: how a ``hf:`` model computes attention, such as ``eager``.
        trust: open an exported program even if it carries pickles that run code.

    Raises:
        ModelError: the word names no model, or the model cannot be built, or has no such method.
        RequestError: a weights word names no file and no pretrained weights.
        WeightsError: the weights cannot be read or fetched, or do not fit.
        EnvironmentFault: torchvision is missing or does not match torch, or the package is missing
            that the word needs.

    Example:
        >>> load("resnet18", meta=True).module.fc
        Linear(in_features=512, out_features=1000, bias=True)
    """
    word = os.fspath(word)
    wanted = WeightsRequest(os.fspath(weights), tuple((rename or {}).items()), partial)
    _refuse_idle(wanted)
    spec = catalog.check_model_spec(word)
    catalog.check_attn(spec, attn)
    source = import_module(_SOURCES[spec.source])
    more: dict[str, Any] = {}
    if spec.source == TORCHSCRIPT:
        more["method"] = method or FORWARD
    elif spec.source == EXPORTED:
        more["trust"] = trust
    elif spec.source == TRANSFORMERS:
        more["attn"] = attn
    loaded = source.load(
        spec, weights=wanted, model_args=dict(model_args or {}), seed=seed, meta=meta, **more
    )
    loaded = replace(cast(LoadedModel, loaded), module=as_hookable(loaded.module))
    if method not in (None, FORWARD):
        _run_by(loaded.module, word, str(method))
    return loaded


def _refuse_idle(wanted: WeightsRequest) -> None:
    if (wanted.rename or wanted.partial) and not is_weights_file(wanted.word):
        given = "--rename" if wanted.rename else "--partial"
        raise RequestError(
            f"{given} is for weights from a file, and none is given.",
            "Give the file too: --weights FILE.",
        )


def _run_by(module: nn.Module, word: str, method: str) -> None:
    """Let a call of ``module`` run another method than ``forward``, hooks and all."""
    kind = type(module)
    own = [n for n in dir(kind) if not n.startswith("_") and not hasattr(nn.Module, n)]
    methods = [name for name in own if callable(getattr(kind, name))]
    if method not in methods:
        near = did_you_mean(method, methods)
        others = f"It has {', '.join(['forward', *methods])}." if methods else "It has forward."
        raise ModelError(f"{word} has no method {method!r}.", f"{near} {others}".strip())
    if hasattr(module, "_hookscope_method"):  # a scripted one, whose methods call each other
        vars(module)["_hookscope_method"] = method
    else:
        module.__dict__[FORWARD] = getattr(module, method)


def wrap(model: nn.Module | torch.export.ExportedProgram) -> LoadedModel:
    """Return a live model as a loaded one; it keeps its mode, weights and device."""
    module = as_hookable(model)
    name = type(unwrapped(module)).__name__
    return LoadedModel(module, name, name, LIVE, weights=WeightsInfo("as given"))
