"""One pass through a model for the tree: output shapes, calls and FLOPs of every module."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hookscope.hooks import Recorder
from hookscope.modules import ROOT, LayerRun, ModuleTree, layers_of
from hookscope.records import OUTPUT
from hookscope.tensors import as_call


def with_runs(tree: ModuleTree, model: nn.Module, value: Any) -> ModuleTree:
    """Return ``tree`` with what one forward pass of ``model`` on ``value`` showed.

    FLOPs are counted by ``torch.utils.flop_counter``: matrix products, convolutions and attention,
    two for each multiply-add; elementwise work is not counted. Whatever the model raises is raised.

    Args:
        tree: the tree of ``model``.
        model: the model, on the meta device if that is to cost no memory.
        value: a call value on the same device.
    """
    layers = layers_of(model)
    args, kwargs = as_call(value)
    recorder = Recorder(model, layers, [OUTPUT])
    with torch.no_grad(), FlopCounterMode(display=False) as counter, recorder as capture:
        model(*args, **kwargs)
    calls = {fired.module: fired.calls for fired in capture.coverage.fired}
    shapes: dict[str, list[str]] = defaultdict(list)
    for record in capture.records:
        if record.call == 1:
            shapes[record.module].append("x".join(map(str, record.shape)) or "scalar")
    counted = {
        name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()
    }
    root = type(model).__name__
    flops = {
        layer.name: next(
            (
                counted[key]
                for key in _counter_names(root, layer.name, layer.aliases)
                if key in counted
            ),
            0,
        )
        for layer in layers
    }
    runs = {name: LayerRun(calls.get(name, 0), tuple(shapes[name]), flops[name]) for name in flops}
    nodes = tuple(replace(node, run=runs[node.name]) for node in tree.nodes)
    return ModuleTree(tree.model, nodes, nodes[0])


def _counter_names(root: str, name: str, aliases: tuple[str, ...]) -> list[str]:
    """How the counter may call a module: by the model's class and any one of its names."""
    return [root if one == ROOT else f"{root}.{one}" for one in (name, *aliases)]
