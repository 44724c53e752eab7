"""The final norm and the unembedding applied to the residual stream at every layer.

This is the logit lens of nostalgebraist, "interpreting GPT: the logit lens" (2020): the logits of a
layer are ``head(norm(x))`` with the layer's output ``x``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hookscope.analysis.lens.residual_stream import ResidualStream
from hookscope.errors import LayerError, RequestError, cause
from hookscope.hooks.layers import Layer

TOP = 5  # candidates of a cell
_CHUNK = 1 << 26  # logits computed at once


@dataclass(frozen=True)
class Prediction:
    """What a layer predicts at several positions.

    Attributes:
        top: ids of the most probable tokens, int64 (positions, at most 5).
        probabilities: theirs, float32.
        rank: of the target, from 1, int64 (positions,).
        probability: of the target, float32 (positions,).
        kl: divergence of the model's prediction from this one, in nats, float32 (positions,).
    """

    top: Tensor
    probabilities: Tensor
    rank: Tensor
    probability: Tensor
    kl: Tensor


class Unembedding:
    """The last part of a model, from the residual stream to the logits.

    Args:
        model: the model.
        stream: a run of it.
        count: number of tokens that the model's own logits have.
    """

    def __init__(self, model: nn.Module, stream: ResidualStream, count: int) -> None:
        self._norm, self._head = stream.norm, stream.head
        self._width = stream.end.shape[-1]
        self._count = count
        self._config = getattr(model, "config", None)

    def logits(self, layer: str, residual: Tensor) -> Tensor:
        """Return the logits of a residual stream, in float32 or wider.

        Args:
            layer: the name of what returned it; the norm's output goes to the head alone.
            residual: (..., width).

        Raises:
            LayerError: it is not as wide as what the last block returns.
            RequestError: the norm or the head cannot be applied to it.
        """
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
    """Yield each layer with what it predicts at the positions.

    Args:
        unembedding: the norm and the head.
        stream: the values by layer: batch, position, width.
        final_logits: of the whole model, (positions, token), float32 or wider.
        targets: an id for each position, int64 (positions,).
        positions: indices into batch times position, int64 (positions,).

    Raises:
        LayerError: a layer is not as wide as what the last block returns.
        RequestError: the norm or the head cannot be applied.
    """
    parts: dict[str, list[Sequence[Tensor]]] = {layer: [] for layer in stream.values}
    step = max(1, _CHUNK // final_logits.shape[-1])
    for at in (slice(first, first + step) for first in range(0, len(positions), step)):
        model = _ModelPrediction(final_logits[at])
        for layer, value in stream.values.items():
            logits = unembedding.logits(layer, value.flatten(0, -2)[positions[at]])
            parts[layer].append(_predict(logits, model, targets[at]))
    for layer, columns in parts.items():
        yield layer, Prediction(*map(torch.cat, zip(*columns, strict=True)))


class _ModelPrediction:
    """The probabilities of the whole model, with which those of its layers are compared."""

    def __init__(self, logits: Tensor) -> None:
        self._log_p = logits.log_softmax(-1)
        self._p = self._log_p.exp()
        # A token that a model forbids has the logit -inf and adds nothing.
        self._forbidden = logits.isneginf() if bool(logits.isneginf().any()) else None

    def divergence(self, log_q: Tensor) -> Tensor:
        """Return the sum of p log(p / q); ``log_q`` is overwritten."""
        terms = torch.sub(self._log_p, log_q, out=log_q).mul_(self._p)
        if self._forbidden is not None:
            terms.masked_fill_(self._forbidden, 0)
        return terms.sum(-1).clamp_min_(0)


def _predict(logits: Tensor, model: _ModelPrediction, targets: Tensor) -> Sequence[Tensor]:
    """Top ids, their probabilities, rank and probability of the target, and divergence."""
    log_z = logits.logsumexp(-1, keepdim=True)
    top = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
    target = logits.gather(-1, targets.unsqueeze(-1))
    return (
        top.indices,
        (top.values - log_z).exp(),
        # So written, a NaN makes the target the last one and not the first.
        (~(logits <= target)).sum(-1).add_(1).clamp_max_(logits.shape[-1]),
        (target - log_z).exp().squeeze(-1),
        model.divergence(logits - log_z),
    )


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of finite entries, over the largest magnitude of the first."""
    finite = a.isfinite() & b.isfinite()
    if not bool(finite.any()):
        return 0.0
    scale = float(a[finite].abs().max()) or 1.0
    return float((a - b)[finite].abs().max()) / scale
