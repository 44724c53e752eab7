"""One pass through a model for the tree: output shapes, calls and FLOPs of every module."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hookscope.execute import forward_on_meta, model_failed, untouched
from hookscope.hooks import Recorder
from hookscope.kinds import OUTPUT
from hookscope.modules import ROOT, Layer, LayerRun, ModuleTree, layers_of
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.loading import load
from hookscope.tensors import as_call, map_tensors

log = logging.getLogger("hookscope")


def with_shapes(
    tree: ModuleTree,
    loaded: LoadedModel,
    shape: Sequence[int] | None = None,
    model_args: Mapping[str, Any] | None = None,
) -> ModuleTree:
    """Return ``tree`` with what one forward pass showed of each module.

    The pass is made on the meta device, or truly where the model cannot run there. FLOPs are those
    of ``torch.utils.flop_counter``: matrix products, convolutions and attention, two for each
    multiply-add; elementwise work is not counted.

    Args:
        tree: the tree of the model ``loaded``.
        loaded: the model, itself on the meta device or not.
        shape: shape of the noise to run on; None for what the model takes by itself.
        model_args: what ``loaded`` was built with, in case it must be built again with values.

    Raises:
        InputError: what the model takes is not known.
        ForwardError: the true pass failed too; names the layer.
    """
    value = loaded.example(0) if shape is None else loaded.layout.noise(tuple(shape), 0)
    module = loaded.module
    try:
        with untouched(module, train=module.training, seed=0):
            return _with_runs(tree, module, lambda: forward_on_meta(module, value))
    except Exception:  # code that looks at values, such as a detector's
        log.info("shapes: from a true run, since %s cannot run without values", loaded.word)
    if any(parameter.is_meta for parameter in module.parameters()):
        module = load(loaded.word, model_args=model_args).module
    device = next((p.device for p in module.parameters()), None)
    args, kwargs = as_call(map_tensors(value, lambda path, tensor: tensor.to(device)))
    try:
        with untouched(module, train=module.training, seed=0):
            return _with_runs(tree, module, lambda: module(*args, **kwargs))
    except Exception as error:
        raise model_failed(module, value, error) from error


def _with_runs(tree: ModuleTree, model: nn.Module, run: Callable[[], Any]) -> ModuleTree:
    layers = layers_of(model)
    recorder = Recorder(model, layers, [OUTPUT])
    with torch.no_grad(), FlopCounterMode(display=False) as counter, recorder as capture:
        run()
    calls = {fired.module: fired.calls for fired in capture.coverage.fired}
    shapes: dict[str, list[str]] = defaultdict(list)
    for record in capture.records:
        if record.call == 1:
            shapes[record.module].append("x".join(map(str, record.shape)) or "scalar")
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    root = type(model).__name__
    runs = {
        x.name: LayerRun(calls.get(x.name, 0), tuple(shapes[x.name]), _flops_of(x, root, flops))
        for x in layers
    }
    nodes = tuple(replace(node, run=runs[node.name]) for node in tree.nodes)
    return ModuleTree(tree.model, nodes, nodes[0])


def _flops_of(layer: Layer, root: str, flops: Mapping[str, int]) -> int:
    """What the counter has for a module, named there by the model's class and one of its names."""
    names = (root if name == ROOT else f"{root}.{name}" for name in (layer.name, *layer.aliases))
    return next((flops[name] for name in names if name in flops), 0)
