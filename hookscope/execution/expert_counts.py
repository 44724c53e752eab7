"""How many tokens each expert of a mixture of experts gets."""

from __future__ import annotations

import torch
from torch import nn

from hookscope.hooks.capture import Capture
from hookscope.results.metadata import ExpertCounts
from hookscope.specs.record_kinds import OUTPUT


def count_expert_tokens(capture: Capture, model: nn.Module) -> list[ExpertCounts]:
    """Return the tokens of each expert for every recorded call of a router, in execution order.

    A router is a module of transformers with ``num_experts`` that returns the indices of the
    chosen experts, an integer tensor of shape (tokens, ``top_k``). A token that goes to several
    experts counts for each.
    """
    modules = dict(model.named_modules())
    counts: list[ExpertCounts] = []
    for record in capture.records:
        router = modules.get("" if record.module == "." else record.module)
        experts = getattr(router, "num_experts", None)
        chosen = getattr(router, "top_k", None)
        if record.kind != OUTPUT or not isinstance(experts, int):
            continue
        indices = capture[record.key]
        integers = not (indices.is_floating_point() or indices.is_complex())
        if integers and indices.ndim and indices.shape[-1] == chosen:
            tokens = torch.bincount(indices.flatten().cpu(), minlength=experts).tolist()
            counts.append({"key": record.key, "tokens": tokens})
    return counts
