"""The named-module tree of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.errors import ForwardError
from hookscope.hooks.layers import check_not_lazy, describe_model
from hookscope.hooks.selection import select
from hookscope.results.module_tree import ModuleTree
from hookscope.sources import model_loader
from hookscope.sources.live import check_model
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request


def tree(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    shapes: bool = False,
    shape: Sequence[int] | None = None,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
) -> ModuleTree:
    """Return the named-module tree of a model.

    Args:
        model: the spec of a model, or a module.
        layers: layer patterns; none means all. A leading ``!`` excludes.
        types: class names or globs of them, such as ``Conv2d``.
        depth: the maximum number of parts of a name; 0 is the model itself.
        leaves: leaf modules only.
        shapes: add output shapes, calls and FLOPs, from a pass on the meta device, or from a real
            run if the model cannot run there.
        shape: shape of the input for that pass.
        model_args: keyword arguments for a class or factory.
        method: the method to run instead of ``forward``, of a model given by its spec.
        attn: how a ``hf:`` model computes attention, such as ``eager``, which shows its weights.
        trust: open an exported program (.pt2) even if it carries pickles that run code.

    Raises:
        ModelError: no such model.
        RequestError: a live model is given with an option for models given by name.
        LayerError: a pattern matches nothing.
        ForwardError: the pass for ``shapes`` failed; its ``tree`` has the modules that ran before.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", layers=["layer1.0.*"], types=["Conv2d"])
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('layer1.0.conv1', 36864), ('layer1.0.conv2', 36864)]
    """
    check_model(model, str, os.PathLike)
    request = Request(
        "tree",
        ModelRequest(model, model_args=model_args, method=method, attn=attn, trust=trust),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(shape=shape),
    )
    load_again: Callable[..., LoadedModel] | None = None
    if isinstance(model, str | os.PathLike):
        load_again = partial(
            model_loader.load, model, model_args=model_args, method=method, attn=attn, trust=trust
        )
        loaded = load_again(meta=True)
    else:
        loaded = model_loader.wrap(model)
    check_not_lazy(loaded.module)
    selected = select(
        loaded.module,
        request.layers.layers,
        types=request.layers.types,
        depth=depth,
        leaves=leaves,
        word=loaded.word,
    )
    whole = describe_model(loaded.module, loaded.word)
    known = {node.name for node in whole.nodes}
    names = {layer.name for layer in selected}
    if shapes:
        from hookscope.analysis.shapes import add_shapes  # its FLOP counter takes 0.1 s to import

        try:
            whole = add_shapes(whole, loaded, shape, load_again)
        except ForwardError as error:
            error.tree = _select_nodes(error.tree, names)
            raise
    for node in whole.nodes:  # modules that ``forward`` added are selected with their parent
        if node.name not in known and (node.name.rpartition(".")[0] or ROOT) in names:
            names.add(node.name)
    return _select_nodes(whole, names)


def _select_nodes(whole: ModuleTree, names: Container[str]) -> ModuleTree:
    return replace(whole, nodes=tuple(node for node in whole.nodes if node.name in names))
