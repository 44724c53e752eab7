"""How far the running statistics of batch norms are from those of a batch, in standard errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.files.words import number_text
from hookscope.hooks.layers import BATCH_NORMS, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.records import key_of
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.tensor_stats import dense_real

FAR = 5.0  # standard errors; the median of many channels is seldom above 1 by chance
_ROWS = 4  # with fewer, the standard error is not known


def far_statistics(prepared: Prepared) -> dict[str, str]:
    """Run a model; return a sentence part for each output of a batch norm that is ``FAR`` off."""
    model = prepared.module
    found = _BatchStatistics()
    layers = [layer for layer in layers_of(model) if _has_statistics(layer.module)]
    with prepared.preserved(), grad_mode(False), CallRegistry(model).subscribed(found, layers):
        forward(prepared)
    return found.reasons


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORMS) and module.running_mean is not None


class _BatchStatistics(CallSubscriber):
    """Compares the statistics of each input with the running ones."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def before_call(self, call: ModuleCall) -> None:
        """Compare those of a call, before it updates the running ones."""
        module: Any = call.module
        values = next(iter((*call.args, *call.kwargs.values())), None)
        if not isinstance(values, Tensor) or values.dim() < 2 or len(values) < _ROWS:
            return
        distances = statistic_distances(values, module.running_mean, module.running_var)
        name = max(distances, key=lambda name: distances[name])
        if distances[name] > FAR:
            key = key_of(call.layer.name, call.number, OUTPUT)
            size = number_text(distances[name], 3)
            self.reasons[key] = f"the running {name} is {size} standard errors from the batch's"


def statistic_distances(values: Tensor, mean: Tensor, var: Tensor) -> dict[str, float]:
    """Return the median distance of the channels' mean and variance, in standard errors.

    Each row of ``values`` (N, C, ...) is one sample: positions within a row are not independent.
    The standard error is the standard deviation of the rows' means over the square root of N.
    """
    x = dense_real(values).double().flatten(2) if values.dim() > 2 else values.double()[..., None]
    center = x.mean((0, 2))
    rows = {"mean": x.mean(2), "variance": (x - center[:, None]).square().mean(2)}
    distances = {}
    for (name, samples), running in zip(rows.items(), (mean, var), strict=True):
        error = samples.std(0) / len(samples) ** 0.5
        gap = (samples.mean(0) - running.double()).abs()
        distances[name] = float(torch.where(gap == 0, 0.0, gap / error).median())
    return distances
