"""The final norm and the unembedding applied to the residual stream at every layer.

This is the logit lens of nostalgebraist, "interpreting GPT: the logit lens" (2020): the logits of a
layer are ``head(norm(x))`` with the layer's output ``x``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hookscope.errors import LayerError, RequestError, cause
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.lens.residual_stream import ResidualStream

TOP = 5  # candidates of a cell
_CHUNK = 1 << 26  # logits computed at once
_BLOCK = 64  # logits whose maximum is taken in search of the largest


@dataclass(frozen=True)
class Prediction:
    """What a layer predicts at several positions."""

    top: Tensor
    probabilities: Tensor
    rank: Tensor
    probability: Tensor
    kl: Tensor


class Unembedding:
    """The last part of a model, from the residual stream to the logits."""

    def __init__(self, model: nn.Module, stream: ResidualStream, count: int) -> None:
        self._norm, self._head = stream.norm, stream.head
        self._width = stream.end.shape[-1]
        self._count = count
        self._config = getattr(model, "config", None)

    def logits(self, layer: str, residual: Tensor) -> Tensor:
        """Return the logits of a residual stream, in float32 or wider."""
        if residual.shape[-1] != self._width:
            raise LayerError(
                f"The output of {layer} is {residual.shape[-1]} wide, and that of the last block"
                f" {self._width}.",
                "Select the layers that return the residual stream, usually the blocks.",
            )
        value = residual
        if self._norm is not None and layer != self._norm.name:
            value = self._apply(self._norm, value, self._width)
        logits = self._finish(self._apply(self._head, value, self._count))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _apply(self, layer: Layer, value: Tensor, width: int) -> Tensor:
        hint = "Name other modules with --norm and --head."
        try:
            result = layer.module(value)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of a module that is not meant for it
            raise RequestError(f"{layer.title} cannot be applied: {cause(error)}.", hint) from error
        if not isinstance(result, Tensor) or result.shape != (*value.shape[:-1], width):
            shape = "x".join(map(str, getattr(result, "shape", ()))) or type(result).__name__
            raise RequestError(
                f"{layer.title} returns {shape} and not {width} numbers for each position.", hint
            )
        return result

    def _finish(self, logits: Tensor) -> Tensor:
        """Apply what some models of transformers do after the head, by their configuration."""
        scale = getattr(self._config, "logit_scale", None)  # Cohere
        if isinstance(scale, float | int):
            logits = logits * scale
        divisor = getattr(self._config, "logits_scaling", None)  # Granite
        if isinstance(divisor, float | int):
            logits = logits / divisor
        cap = getattr(self._config, "final_logit_softcapping", None)  # Gemma 2
        if isinstance(cap, float | int):
            logits = torch.tanh(logits / cap) * cap
        return logits


def read_layers(
    unembedding: Unembedding,
    stream: ResidualStream,
    final_logits: Tensor,
    targets: Tensor,
    positions: Tensor,
) -> Iterator[tuple[str, Prediction]]:
    """Yield each layer with what it predicts at the positions."""
    parts: dict[str, list[Sequence[Tensor]]] = {layer: [] for layer in stream.values}
    step = max(1, _CHUNK // final_logits.shape[-1])
    for at in (slice(first, first + step) for first in range(0, len(positions), step)):
        model = _ModelPrediction(final_logits[at], targets[at])
        for layer, value in stream.values.items():
            logits = unembedding.logits(layer, value.flatten(0, -2)[positions[at]])
            parts[layer].append(model.compare(logits.to(final_logits.dtype)))
    for layer, columns in parts.items():
        yield layer, Prediction(*map(torch.cat, zip(*columns, strict=True)))


class _ModelPrediction:
    """The prediction of the whole model, with which those of its layers are compared."""

    def __init__(self, logits: Tensor, targets: Tensor) -> None:
        self._targets = targets.unsqueeze(-1)
        self._log_p = logits.log_softmax(-1)
        self._p = self._log_p.exp()
        # A token that a model forbids has the logit -inf and adds nothing.
        self._forbidden = logits.isneginf() if bool(logits.isneginf().any()) else None
        # Memory for all layers: that of a new tensor costs more than what is computed in it.
        self._scratch = torch.empty_like(logits)

    def compare(self, logits: Tensor) -> Sequence[Tensor]:
        """Return a layer's top ids, their probabilities, and rank, probability and divergence."""
        top = _largest(logits, min(TOP, logits.shape[-1]))
        rank = self._rank(logits)
        log_q = torch.log_softmax(logits, -1, out=self._scratch)
        probabilities = log_q.gather(-1, torch.cat([top, self._targets], -1)).exp()
        return top, probabilities[:, :-1], rank, probabilities[:, -1], self._divergence(log_q)

    def _rank(self, logits: Tensor) -> Tensor:
        """The rank of each target from 1; a NaN makes it the last one."""
        count = logits.shape[-1]
        # Sums of float32 are faster than those of bool, and exact up to 2**24 tokens.
        below = torch.le(logits, logits.gather(-1, self._targets), out=self._scratch).sum(-1)
        return (count + 1 - below).long().clamp_max_(count)

    def _divergence(self, log_q: Tensor) -> Tensor:
        """The sum of p log(p / q); ``log_q`` is overwritten."""
        terms = torch.sub(self._log_p, log_q, out=log_q).mul_(self._p)
        if self._forbidden is not None:
            terms.masked_fill_(self._forbidden, 0)
        return terms.sum(-1).clamp_min_(0)


def _largest(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits in descending order, int64 (positions, count).

    They lie in the blocks with the largest maxima. Tensor.topk of all logits takes four times as
    long.
    """
    blocks = logits.shape[-1] // _BLOCK
    if blocks <= count:
        return logits.topk(count).indices
    whole = blocks * _BLOCK
    maxima = logits[:, :whole].unflatten(-1, (blocks, _BLOCK)).amax(-1)
    starts = maxima.topk(count).indices.unsqueeze(-1) * _BLOCK
    ids = (starts + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    rest = torch.arange(whole, logits.shape[-1], device=logits.device)
    ids = torch.cat([ids, rest.expand(len(ids), -1)], -1)
    return ids.gather(-1, logits.gather(-1, ids).topk(count).indices)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of finite entries, over the largest magnitude of the first."""
    finite = a.isfinite() & b.isfinite()
    if not bool(finite.any()):
        return 0.0
    scale = float(a[finite].abs().max()) or 1.0
    return float((a - b)[finite].abs().max()) / scale
