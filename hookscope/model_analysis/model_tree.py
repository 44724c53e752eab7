"""The tree of a model's modules, with the shapes of a pass if they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial

from hookscope.errors import ForwardError
from hookscope.execution.prepare import select_layers
from hookscope.hooks.layers import check_not_lazy, describe_model
from hookscope.results.module_tree import ModuleTree
from hookscope.sources import model_loader
from hookscope.sources.live import check_model
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.model_weights import model_weights
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import ModelRequest, Request
from hookscope.stores.weights.weight_set import WeightSet


def describe_request(request: Request, shapes: bool) -> ModuleTree:
    """Return the modules that a request selects."""
    load_again = _loader(request.model)
    loaded = _load(request.model, meta=True)
    selected = select_layers(request.layers, loaded.module, loaded.spec)
    whole = describe_model(loaded.module, loaded.spec)
    known = {node.name for node in whole.nodes}
    names = {layer.name for layer in selected}
    if shapes:
        from hookscope.model_analysis.shapes import (
            add_shapes,  # its FLOP counter takes 0.1 s to import
        )

        try:
            whole = add_shapes(whole, loaded, request.input.shape, load_again)
        except ForwardError as error:
            error.tree = _select_nodes(error.tree, names)
            raise
    for node in whole.nodes:  # modules that ``forward`` added are selected with their parent
        if node.name not in known and (node.name.rpartition(".")[0] or ROOT) in names:
            names.add(node.name)
    return _select_nodes(whole, names)


def initial_weights(request: Request) -> WeightSet:
    """Return the parameters and saved buffers of a model as it is loaded, with random weights."""
    loaded = _load(request.model, meta=False)
    return model_weights(loaded.module, loaded.spec, f"weights {loaded.weights.name}")


def _loader(model: ModelRequest) -> Callable[..., LoadedModel] | None:
    """What loads a model that is given by name."""
    if not model.named:
        return None
    return partial(
        model_loader.load,
        model.model,
        model_args=model.model_args,
        method=model.method,
        attn=model.attn,
        trust=model.trust,
        onnx_optimize=model.onnx_optimize,
        adapter=model.adapter,
    )


def _load(model: ModelRequest, *, meta: bool) -> LoadedModel:
    """The model; one that is given by name without values, if ``meta``."""
    load = _loader(model)
    if load is None:
        check_model(model.model)
        loaded = model_loader.wrap(model.model)
    else:
        loaded = load(meta=meta)
    check_not_lazy(loaded.module)
    return loaded


def _select_nodes(whole: ModuleTree, names: Container[str]) -> ModuleTree:
    return replace(whole, nodes=tuple(node for node in whole.nodes if node.name in names))
