"""From a model's spec to a loaded model. A source is imported only if the spec names it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module

import torch
from torch import nn

from hookscope.errors import ModelError, RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.sources.live import as_hookable
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo, WeightsRequest
from hookscope.sources.wrappers import unwrapped
from hookscope.specs import model_spec
from hookscope.specs.choices import FORWARD
from hookscope.specs.request import ModelRequest

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
    model: ModelRequest, *, seed: int = 0, meta: bool = False, inputs: bool = False
) -> LoadedModel:
    """Load a model that is given by its spec, in eval mode on the CPU; see ``LoadRequest``."""
    spec, request = os.fspath(model.model), LoadRequest(model, seed, meta, inputs)
    _check_file_options(request.weights)
    source = import_module(_SOURCES[request.spec.source])
    loaded: LoadedModel = source.load(request)
    loaded = _with_inputs(replace(loaded, module=as_hookable(loaded.module)))
    if model.method not in (None, FORWARD):
        _replace_forward(loaded.module, spec, str(model.method))
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
    loaded = LoadedModel(module, name, name, model_spec.LIVE, weights=WeightsInfo("as given"))
    return _with_inputs(loaded)


def _with_inputs(loaded: LoadedModel) -> LoadedModel:
    """Let a model of transformers that other code built have the inputs of one from a folder."""
    transformers = sys.modules.get("transformers")  # else the model is none of its classes
    if transformers is None or loaded.source == model_spec.TRANSFORMERS:
        return loaded
    if not isinstance(loaded.module, transformers.PreTrainedModel):
        return loaded
    from hookscope.sources.transformers.model_inputs import ModelInputs

    inputs = ModelInputs(loaded.module)
    loaded = replace(loaded, layout=inputs.layout())
    return loaded if loaded.own_example is not None else replace(loaded, **inputs.as_example())
