"""The logit lens of one run: which positions and tokens there are, and what each layer predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError, LayerError, RequestError
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.lens.residual_stream import ResidualStream, record_stream
from hookscope.model_analysis.lens.unembedding import (
    Prediction,
    Unembedding,
    largest_difference,
    read_layers,
)
from hookscope.model_analysis.output_names import OutputNames
from hookscope.results.lens import Candidate, Lens, LensCell, LensRow, Token
from hookscope.results.tokens import PromptTokens
from hookscope.specs.command_options import LensOptions

_TOLERANCE = 1e-4  # of the last block's logits from the output, over the largest logit
_NARROW_TOLERANCE = 2e-2  # the same in 16 bits


def run_lens(
    prepared: Prepared, layers: Iterable[Layer], options: LensOptions, metadata: dict[str, Any]
) -> Lens:
    """Run the model once, and return what each layer predicts."""
    with preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed):
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
                f"The output of {layer} ({_dims(value.shape)}) is not batch, position, width.",
                "Select the layers that return the residual stream with --layer.",
            )
        shapes.setdefault(tuple(value.shape[:2]), layer)
    if len(shapes) > 1:
        (one, first), (two, second) = list(shapes.items())[:2]
        raise LayerError(
            f"{first} returns {_dims(one)} positions and {second} {_dims(two)}.",
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


def _dims(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


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
