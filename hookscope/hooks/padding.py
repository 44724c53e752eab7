"""The entries of a recorded tensor that belong to tokens, not to the padding of a batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hookscope.results.stats import Stats
from hookscope.results.tokens import PromptTokens
from hookscope.tensors.tensor_stats import summarize


def summarize_real(tensor: Tensor, dims: Mapping[int, PromptTokens]) -> Stats:
    """Return the statistics of the entries at positions that are not padding."""
    chosen = torch.ones((1,) * tensor.ndim, dtype=torch.bool)
    for dim, prompt in dims.items():
        real = torch.ones(len(prompt.ids), prompt.length, dtype=torch.bool)
        for row, padding in enumerate(prompt.padding):
            real[row, list(padding)] = False
        shape = [1] * tensor.ndim
        shape[0], shape[dim] = real.shape
        chosen = chosen & real.reshape(shape)
    return summarize(tensor[chosen.to(tensor.device).expand(tensor.shape)])
