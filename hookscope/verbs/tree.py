"""The named-module tree of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.choices import DEFAULT_MODEL
from hookscope.keywords import (
    several,
)
from hookscope.module_tree import ModuleTree
from hookscope.modules import describe, refuse_lazy
from hookscope.select import select
from hookscope.sources import loading
from hookscope.sources.live import demand_model
from hookscope.sources.loaded import LoadedModel


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
        model: a model's word, or a live module.
        layers: layer patterns; none means all. A leading ``!`` takes away.
        types: class names or globs of them, such as ``Conv2d``.
        depth: names of at most so many parts; 0 is the model itself.
        leaves: modules without children only.
        shapes: add output shapes, calls and FLOPs, from a pass on the meta device, or from a true
            one where the model cannot run there.
        shape: shape of the input for that pass.
        model_args: keyword arguments for a class or factory.
        method: the method to run in place of ``forward``, of a model given by its word.
        attn: how a ``hf:`` model computes attention, such as ``eager``, which shows its weights.
        trust: open an exported program (.pt2) even if it carries pickles that run code.

    Raises:
        ModelError: no such model.
        LayerError: a pattern matches nothing.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", layers=["layer1.0.*"], types=["Conv2d"])
        >>> [(node.name, node.parameters) for node in tree.nodes]
        [('layer1.0.conv1', 36864), ('layer1.0.conv2', 36864)]
    """
    demand_model(model, str, os.PathLike)
    again: Callable[..., LoadedModel] | None = None
    if not isinstance(model, str | os.PathLike):
        loaded = loading.wrap(model)
    else:
        again = partial(
            loading.load, model, model_args=model_args, method=method, attn=attn, trust=trust
        )
        loaded = again(meta=True)
    refuse_lazy(loaded.module)
    chosen = select(
        loaded.module,
        several(layers),
        types=several(types),
        depth=depth,
        leaves=leaves,
        word=loaded.word,
    )
    whole = describe(loaded.module, loaded.word)
    if shapes:
        from hookscope.layer_runs import with_shapes  # its FLOP counter takes 0.1 s to import

        whole = with_shapes(whole, loaded, shape, again)
    names = {layer.name for layer in chosen}
    return replace(whole, nodes=tuple(node for node in whole.nodes if node.name in names))
