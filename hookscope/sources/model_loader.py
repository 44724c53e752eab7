"""From a model's spec to a loaded model. A source is imported only if the spec names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from hookscope.errors import ModelError, RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.sources.live import as_hookable
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo, WeightsRequest
from hookscope.sources.wrappers import unwrapped
from hookscope.specs import catalog, model_spec
from hookscope.specs.catalog import NO_ADAPTER, check_adapter
from hookscope.specs.literal_arguments import join_arguments

FORWARD = "forward"

# Each module has a function load(request: LoadRequest) -> LoadedModel.
_SOURCES = {
    model_spec.TORCHVISION: "hookscope.sources.torchvision",
    model_spec.FILE: "hookscope.sources.python_file",
    model_spec.MODULE: "hookscope.sources.python_file",
    model_spec.TIMM: "hookscope.sources.timm",
    model_spec.TRANSFORMERS: "hookscope.sources.transformers.transformers_source",
    model_spec.PLUGIN: "hookscope.sources.third_party",
    model_spec.TORCHSCRIPT: "hookscope.sources.torchscript.torchscript_source",
    model_spec.EXPORTED: "hookscope.sources.exported.exported_source",
    model_spec.ONNX: "hookscope.sources.onnx.onnx_source",
    model_spec.PICKLED: "hookscope.sources.pickled_model",
}


def load(
    spec: str | os.PathLike[str],
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
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Load a model, in eval mode on the CPU."""
    spec = os.fspath(spec)
    request = WeightsRequest(os.fspath(weights), tuple((rename or {}).items()), partial)
    _check_file_options(request)
    parsed = catalog.check_model_spec(spec, trust)
    catalog.check_attn(parsed, attn)
    check_adapter(parsed, adapter)
    source = import_module(_SOURCES[parsed.source])
    loaded: LoadedModel = source.load(
        LoadRequest(
            parsed,
            weights=request,
            model_args=join_arguments(spec, parsed.arguments, model_args),
            seed=seed,
            meta=meta,
            method=method or FORWARD,
            attn=attn,
            trust=trust,
            optimize=onnx_optimize or "none",
            adapter=None if adapter in (None, NO_ADAPTER) else os.fspath(adapter),
        )
    )
    loaded = replace(loaded, module=as_hookable(loaded.module))
    if method not in (None, FORWARD):
        _replace_forward(loaded.module, spec, str(method))
    return loaded


def _check_file_options(request: WeightsRequest) -> None:
    if (request.rename or request.partial) and not model_spec.is_weights_file(request.spec):
        option = "--rename" if request.rename else "--partial"
        raise RequestError(
            f"{option} is for weights from a file, but no file is given.",
            "Add --weights FILE.",
        )


def _replace_forward(module: nn.Module, spec: str, method: str) -> None:
    """Let a call of ``module``, with its hooks, run another method than ``forward``."""
    cls = type(module)
    own = [n for n in dir(cls) if not n.startswith("_") and not hasattr(nn.Module, n)]
    methods = [name for name in own if callable(getattr(cls, name))]
    if method not in methods:
        near = did_you_mean(method, methods)
        others = f"It has {', '.join(['forward', *methods])}." if methods else "It has forward."
        raise ModelError(f"{spec} has no method {method!r}.", f"{near} {others}".strip())
    if hasattr(module, "_hookscope_method"):  # a scripted module, whose methods call each other
        vars(module)["_hookscope_method"] = method
    else:
        module.__dict__[FORWARD] = getattr(module, method)


def wrap(model: nn.Module | torch.export.ExportedProgram) -> LoadedModel:
    """Return a live model as a LoadedModel; it keeps its mode, weights and device."""
    module = as_hookable(model)
    name = type(unwrapped(module)).__name__
    return LoadedModel(module, name, name, model_spec.LIVE, weights=WeightsInfo("as given"))
