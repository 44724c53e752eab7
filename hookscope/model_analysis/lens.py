"""The logit lens of one run: which positions and tokens there are, and what each layer predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError, LayerError, RequestError, cause
from hookscope.execution.language_output import OutputNames
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.files.words import shape_text
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.residual_stream import ResidualStream, record_stream
from hookscope.results.lens import Candidate, Lens, LensCell, LensRow, Token
from hookscope.results.tokens import PromptTokens
from hookscope.specs.command_options import LensOptions

TOP = 5  # candidates of a cell
_CHUNK = 1 << 26  # logits computed at once
_BLOCK = 64  # logits whose maximum is taken in search of the largest

_TOLERANCE = 1e-4  # of the last block's logits from the output, over the largest logit
_NARROW_TOLERANCE = 2e-2  # the same in 16 bits


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
                f"The output of {layer} is {residual.shape[-1]} wide, but the output of the last"
                f" block is {self._width} wide.",
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
            is_tensor = isinstance(result, Tensor)
            shape = shape_text(result.shape) if is_tensor else type(result).__name__
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
    """Ids of the largest logits, descending, int64 (positions, count), faster than ``topk``."""
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


def run_lens(
    prepared: Prepared, layers: Iterable[Layer], options: LensOptions, metadata: dict[str, Any]
) -> Lens:
    """Run the model once, and return what each layer predicts."""
    with prepared.preserved():
        stream = record_stream(prepared, layers, options.norm, options.head)
        rows, length = _common_shape(prepared, stream)
        unembedding = Unembedding(prepared.module, stream, stream.logits.shape[-1])
        prompt = _prompt(prepared, rows, length)
        texts = _rows(prompt, rows, length)
        at = [(n, p) for n, row in enumerate(texts) for p in _real(row, length)]
        if not at:
            raise InputError("The input is only padding.", "Give a text with tokens.")
        positions = torch.tensor([row * length + position for row, position in at])
        final = _final_logits(stream, unembedding, (rows, length))[positions]
        names = OutputNames(prepared, final.shape[-1])
        token = names.target(options.target)
        targets = final.argmax(-1) if token is None else torch.full_like(final[:, 0], token).long()
        cells = [
            cell
            for layer, prediction in read_layers(unembedding, stream, final, targets, positions)
            for cell in _cells(layer, prediction, at, targets.tolist(), names)
        ]
        notes = _notes(stream, unembedding, final, positions)
    return Lens(
        layers=tuple(stream.values),
        rows=texts,
        positions=length,
        cells=tuple(cells),
        norm=stream.norm.name if stream.norm else "",
        head=stream.head.name,
        notes=notes,
        metadata=metadata,
    )


def _common_shape(prepared: Prepared, stream: ResidualStream) -> tuple[int, int]:
    """Batch and positions, which all layers have in common."""
    shapes: dict[tuple[int, ...], str] = {}
    for layer, value in stream.values.items():
        if value.ndim != 3:
            raise LayerError(
                f"The output of {layer} ({shape_text(value.shape)}) is not batch, position, width.",
                "Select the layers that return the residual stream with --layer.",
            )
        shapes.setdefault(tuple(value.shape[:2]), layer)
    if len(shapes) > 1:
        (one, first), (two, second) = list(shapes.items())[:2]
        raise LayerError(
            f"{first} returns {shape_text(one)} positions and {second} {shape_text(two)}.",
            "Select layers that return the residual stream with --layer.",
        )
    if not shapes:
        raise RequestError(
            "None of the selected layers ran.", "Select layers that the model calls."
        )
    [(rows, length)] = shapes
    if rows != length and tuple(stream.logits.shape[:-1]) == (length, rows):
        raise RequestError(
            f"The layers of {prepared.loaded.spec} return position, batch, width.",
            "The lens needs batch, position, width.",
        )
    return rows, length


def _prompt(prepared: Prepared, rows: int, length: int) -> PromptTokens | None:
    """The tokens at the positions; those of a decoder if there are some."""
    prompts = prompt_tokens(prepared.loaded, prepared.value)
    decoders = [prompt for prompt in prompts if prompt.argument.startswith("decoder")]
    fitting = (p for p in decoders or prompts if (len(p.ids), p.length) == (rows, length))
    return next(fitting, None)


def _rows(prompt: PromptTokens | None, rows: int, length: int) -> tuple[LensRow, ...]:
    if prompt is None:
        return (LensRow(()),) * rows
    return tuple(
        LensRow(
            tuple(Token(ids[n], prompt.label(row, n)) for n in range(length)), prompt.padding[row]
        )
        for row, ids in enumerate(prompt.ids)
    )


def _real(row: LensRow, length: int) -> Sequence[int]:
    return [position for position in range(length) if position not in set(row.padding)]


def _final_logits(
    stream: ResidualStream, unembedding: Unembedding, shape: tuple[int, int]
) -> Tensor:
    """The logits of the whole model at all positions: (batch times position, token)."""
    logits = stream.logits
    if tuple(logits.shape[:-1]) != shape:  # a classifier reads one position
        logits = unembedding.logits("the last block", stream.end)
    return logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))


def _cells(
    layer: str,
    prediction: Prediction,
    at: list[tuple[int, int]],
    targets: list[int],
    names: OutputNames,
) -> Iterable[LensCell]:
    columns = zip(
        at,
        targets,
        prediction.top.tolist(),
        prediction.probabilities.tolist(),
        prediction.rank.tolist(),
        prediction.probability.tolist(),
        prediction.kl.tolist(),
        strict=True,
    )
    for (row, position), target, top, shares, rank, probability, kl in columns:
        candidates = tuple(map(Candidate, map(names.__getitem__, top), shares))
        yield LensCell(layer, row, position, candidates, names[target], rank, probability, kl)


def _notes(
    stream: ResidualStream, unembedding: Unembedding, final: Tensor, positions: Tensor
) -> tuple[str, ...]:
    """Whether the norm and the head make the model's own logits of what the last block returns."""
    notes = []
    if bool(final.isnan().any()):
        notes.append("The model's output contains NaN. hookscope check names the layer.")
    if stream.is_chain or stream.end.shape[:-1] != stream.logits.shape[:-1]:
        return tuple(notes)
    again = unembedding.logits("the last block", stream.end).flatten(0, -2)[positions]
    narrow = stream.logits.dtype in (torch.float16, torch.bfloat16)
    difference = largest_difference(final, again.to(final.dtype))
    if difference > (_NARROW_TOLERANCE if narrow else _TOLERANCE):
        parts = f"{stream.norm.name} and {stream.head.name}" if stream.norm else stream.head.name
        notes.append(
            f"The last block, read with {parts}, does not give the model's output: the logits"
            f" differ by {difference:.2g} of the largest. The model does more than the lens. Name"
            " other modules with --norm and --head, if they do all of it."
        )
    return tuple(notes)
