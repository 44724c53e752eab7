"""The attention weights of all layers of a model, and their product: attention rollout."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.prepare import Prepared
from hookscope.execution.recorded_run import run_forward
from hookscope.files.words import shape_text
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.results.records import Record
from hookscope.specs.tensor_key import ATTENTION

log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class LayerAttention:
    """The attention of a model in one run."""

    weights: tuple[Tensor, ...]
    layers: tuple[str, ...]
    last: Layer
    dtype: torch.dtype


def record_attention(prepared: Prepared, batch: int, item: str, hint: str) -> LayerAttention:
    """Run the model for the attention weights of all layers, as with ``capture --attention``."""
    every = tuple(layers_of(prepared.module))
    capture = run_forward(replace(prepared, layers=every), {ATTENTION}).capture
    records = _attention_records(capture, prepared.loaded.spec, hint)
    layers = tuple(record.module for record in records)
    weights = tuple(_mean_of_heads(capture, record, batch, item, hint) for record in records)
    for record, layer_weights in zip(records, weights, strict=True):
        if layer_weights.shape != weights[0].shape:
            raise RequestError(
                f"Layer {record.module} attends over {layer_weights.shape[1]} tokens, and"
                f" {layers[0]} over {weights[0].shape[1]}, so they cannot be multiplied.",
                hint,
            )
    last = next(layer for layer in every if layer.name == layers[-1])
    dtype = torch.promote_types(capture[records[-1].key].dtype, torch.float32)
    log.info("layers: %s to %s (all %d with attention)", layers[0], last.name, len(records))
    return LayerAttention(weights, layers, last, dtype)


def roll_out(weights: Sequence[Tensor]) -> Tensor:
    """Return B_n ... B_2 B_1 with B_i = (W_i + I) / 2 in float64 (arXiv:2005.00928, equation 1)."""
    identity = torch.eye(weights[0].shape[1], dtype=torch.float64)
    rollout = identity.expand(weights[0].shape)
    for layer in weights:
        rollout = (layer.double() + identity) / 2 @ rollout
    return rollout


def read_tokens(gradient: Tensor | None, prefix: int, size: Sequence[int]) -> Tensor:
    """Return which tokens the score of each image has a gradient at, bool (N, L).

    An image without any, as behind a last layer of zeros, reads the first token if tokens precede
    those of the image, else all.
    """
    read = torch.zeros(*size, dtype=torch.bool)
    if gradient is not None and gradient.ndim == 3:
        read = gradient.ne(0).any(2).cpu()
    default = torch.arange(size[1]) < (1 if prefix else size[1])
    return torch.where(read.any(1, keepdim=True), read, default)


def _attention_records(capture: Capture, spec: str, hint: str) -> list[Record]:
    """The attention of the model in execution order."""
    if capture.absent:
        hidden = capture.absent[0]
        raise RequestError(
            f"The attention weights of layer {hidden.module} ({hidden.type}) are not known:"
            f" {hidden.reason}.",
            hint,
        )
    if not capture.records:
        raise RequestError(
            f"{spec} computes no attention weights, and a rollout multiplies those of all layers.",
            hint,
        )
    return list(capture.records)


def _mean_of_heads(capture: Capture, record: Record, batch: int, item: str, hint: str) -> Tensor:
    """Attention weights (N, heads, L, L), or (N, L, L) of one head, as their mean (N, L, L)."""
    weights = capture[record.key].cpu()
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    shape = shape_text(weights.shape)
    if weights.ndim not in (3, 4) or weights.shape[0] != batch:
        raise RequestError(
            f"The attention weights of layer {record.module} ({record.type}) are {shape}: they are"
            f" not those of {batch} whole {item}{'s' * (batch > 1)}, but of windows, for example.",
            hint,
        )
    if weights.shape[-1] != weights.shape[-2]:
        raise RequestError(
            f"The attention weights of layer {record.module} ({record.type}) are {shape}: its"
            " queries and its keys are different tokens.",
            hint,
        )
    return weights.double().mean(1) if weights.ndim == 4 else weights
