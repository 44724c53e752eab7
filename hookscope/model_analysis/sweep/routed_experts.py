"""Experts that share the parameters of one module, edited one at a time through their routing.

transformers stores the experts of a layer as parameters of three dimensions, experts first, in one
module. It is called with the numbers of the experts chosen for each token and with the weight of
each choice: both (tokens, choices). The output for a token is the sum of the outputs of its
experts, each multiplied by its weight.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EditError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall

# The arguments of the modules of transformers: the numbers of the experts, and their weights.
_ROUTING = (("top_k_index", "top_k_weights"), ("router_indices", "routing_weights"))


def expert_layers(prepared: Prepared) -> tuple[Layer, ...]:
    """Return the selected layers whose experts can be edited one at a time."""
    layers = tuple(layer for layer in prepared.layers if count_experts(layer.module))
    if not layers:
        raise RequestError(
            "None of the selected layers has experts that share its parameters and get their"
            " routing as arguments.",
            "Select such layers with --layer, as in '*.experts'. An expert that is a module of its"
            " own is a layer: select it, and leave out --experts.",
        )
    return layers


def common_expert_count(layers: tuple[Layer, ...]) -> int:
    """Return the number of experts of each layer."""
    counts = [count_experts(layer.module) for layer in layers]
    if len(set(counts)) > 1:
        raise RequestError(
            f"The layers have from {min(counts)} to {max(counts)} experts.",
            "Select layers with the same number of experts.",
        )
    return counts[0]


def count_experts(module: nn.Module) -> int:
    """Return how many experts a module has that gets their routing as arguments; 0 for others.

    Example:
        >>> count_experts(nn.Linear(2, 2))
        0
    """
    counts = {p.shape[0] for p in module.parameters(recurse=False) if p.ndim == 3}
    if len(counts) != 1 or not _routing_names(inspect.signature(module.forward)):
        return 0
    return counts.pop()


@dataclass(frozen=True)
class ExpertEdit(CallSubscriber):
    """Multiplies the weight of one expert, for all tokens that are routed to it."""

    expert: int
    factor: float

    def before_call(self, call: ModuleCall) -> None:
        """Replace the weights among the arguments."""
        signature = inspect.signature(call.module.forward)
        index, weights = _routing_names(signature) or ("", "")
        given = signature.bind(*call.args, **call.kwargs)
        chosen: Any
        weight: Any
        chosen, weight = given.arguments.get(index), given.arguments.get(weights)
        if not _same_shape(chosen, weight):
            reason = f"{index} and {weights} are not two tensors of the same shape"
            layer = f"{call.layer.title} ({call.layer.type})"
            raise EditError(
                f"The experts of {layer} cannot be edited: {reason}.",
                "Leave out the layer.",
                reason,
            )
        new = torch.where(chosen == self.expert, weight * self.factor, weight)
        given.arguments[weights] = new
        call.args, call.kwargs = given.args, given.kwargs


def _same_shape(chosen: Any, weight: Any) -> bool:
    tensors = isinstance(chosen, Tensor) and isinstance(weight, Tensor)
    return tensors and chosen.shape == weight.shape


def _routing_names(signature: inspect.Signature) -> tuple[str, str] | None:
    known = signature.parameters.keys()
    return next((names for names in _ROUTING if known >= set(names)), None)
