"""The layers whose activations are computed again in the backward pass, to fit a limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from hookscope.hooks.layers import Layer
from hookscope.model_analysis.memory.fake_step import StepRun
from hookscope.results.memory import CheckpointPlan
from hookscope.specs.patterns import ROOT

_LINES = 5  # runs until the interval is halved instead
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")  # by name: not their subclasses


def blocks_of(layers: Sequence[Layer]) -> list[Layer]:
    """Return the repeated blocks of a model: the outermost modules in containers of such modules.

    Without any, the outermost modules that have modules inside them.
    """
    types = {layer.name: layer.type for layer in layers}
    inner = [layer for layer in layers if layer.name != ROOT and not layer.leaf]
    parents = {_parent(layer.name) for layer in inner}
    called = [x for x in inner if x.type not in _CONTAINERS[1:]]  # a list is not called itself
    blocks = [x for x in called if x.type != "Sequential" or x.name not in parents]
    repeated = [x for x in blocks if types[_parent(x.name)] in _CONTAINERS]
    return _outermost(repeated) or _outermost(blocks) or _outermost(called)


def _parent(name: str) -> str:
    return name.rpartition(".")[0] or ROOT


def _outermost(layers: Sequence[Layer]) -> list[Layer]:
    kept: list[Layer] = []
    for layer in layers:  # parents come before their children
        if not any(layer.name.startswith(f"{one.name}.") for one in kept):
            kept.append(layer)
    return kept


def plan_checkpoints(
    run: Callable[[Sequence[str]], StepRun], layers: Sequence[Layer], plain: StepRun, limit: int
) -> CheckpointPlan:
    """Return the fewest blocks to checkpoint for a limit, those that save most first.

    ``run`` runs a step with checkpoints. The peak of the answer, and that of one block fewer, which
    is beyond the limit, are those of runs.
    """
    saved = plain.saved_by_layer()
    sizes = {
        block.name: sum(
            size
            for name, size in saved.items()
            if name == block.name or name.startswith(f"{block.name}.")
        )
        for block in blocks_of(layers)
    }
    names = sorted((name for name in sizes if sizes[name]), key=lambda name: -sizes[name])
    runs: dict[int, StepRun] = {0: plain}

    def peak_with(count: int) -> int:
        if count not in runs:
            runs[count] = run(names[:count])
        return runs[count].peak().size

    low, high = 0, len(names)  # ``low`` is too few
    if peak_with(high) > limit:
        return CheckpointPlan((), peak_with(high), len(names), 0)
    kept = [0, *accumulate(sizes[name] for name in names)]
    while high - low > 1:
        middle = (low + high) // 2
        if len(runs) < _LINES:  # the peak falls with what is no longer saved
            part = (peak_with(low) - limit) / (peak_with(low) - peak_with(high))
            middle = bisect_left(kept, kept[low] + part * (kept[high] - kept[low]))
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if peak_with(middle) <= limit else (middle, high)
    order = {layer.name: i for i, layer in enumerate(layers)}
    chosen = tuple(sorted(names[:high], key=order.__getitem__))
    extra = runs[high].flops - plain.flops
    return CheckpointPlan(chosen, peak_with(high), len(names), extra)
