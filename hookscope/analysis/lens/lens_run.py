"""The logit lens of one run: which positions and tokens there are, and what each layer predicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hookscope.analysis.lens.residual_stream import ResidualStream, record_stream
from hookscope.analysis.lens.unembedding import (
    Prediction,
    Unembedding,
    largest_difference,
    read_layers,
)
from hookscope.errors import LayerError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import Layer
from hookscope.results.lens import Candidate, Lens, LensCell, LensRow, Token
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.command_options import LensOptions
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.nested import as_call, walk

_ARGMAX = "argmax"
_TOLERANCE = 1e-4  # of the last layer's logits from the output, over the largest logit
_NARROW_TOLERANCE = 2e-2  # the same in 16 bits


class TokenNames:
    """The texts of the ids that a model predicts: of its tokenizer, or the names of its classes.

    Args:
        loaded: the model.
        count: number of ids.
    """

    def __init__(self, loaded: LoadedModel, count: int) -> None:
        recipe = loaded.own_text
        self._vocabulary = recipe.vocabulary if recipe else None
        self._classes = loaded.categories if len(loaded.categories) == count else ()
        self._count = count
        self._known: dict[int, Token] = {}

    def __getitem__(self, index: int) -> Token:
        token = self._known.get(index)
        if token is None:
            if self._classes:
                text = self._classes[index]
            elif self._vocabulary is not None:
                text = self._vocabulary.text(index)
            else:
                text = str(index)
            token = self._known[index] = Token(index, text)
        return token

    def target(self, target: str | int) -> int | None:
        """Return the id of a target; None for ``argmax``.

        Raises:
            RequestError: the id is out of range, or the model has no such class.
            InputError: the text is not one token.
        """
        if target == _ARGMAX:
            return None
        text = str(target)
        if text.isdecimal():
            if int(text) >= self._count:
                raise RequestError(
                    f"The target {text} is out of range: the model has {self._count} tokens.",
                    f"Give an id from 0 to {self._count - 1}.",
                )
            return int(text)
        if self._classes:
            if text not in self._classes:
                near = did_you_mean(text, self._classes)
                raise RequestError(f"The model has no class {text!r}.", near)
            return self._classes.index(text)
        if self._vocabulary is None:
            raise RequestError(
                f"The model has no tokenizer, so {text!r} has no id.", "Give the id of the token."
            )
        return self._vocabulary.token(text)


def run_lens(
    prepared: Prepared, layers: Iterable[Layer], options: LensOptions, metadata: dict[str, Any]
) -> Lens:
    """Run the model once, and return what each layer predicts.

    Args:
        prepared: the model and its input.
        layers: the layers; none for the blocks of the model.
        options: the norm, the head and the target.
        metadata: of the result.

    Raises:
        LayerError: a layer does not fit the norm or the head.
        RequestError: the blocks or the head cannot be found, or there is no such target.
        InputError: the target is not one token.
        ForwardError: the model raised.
    """
    stream = record_stream(prepared, layers, options.norm, options.head)
    shape = _common_shape(stream)
    unembedding = Unembedding(prepared.module, stream)
    call = _call_tensors(prepared)
    is_padding = _padding(call, shape)
    positions = (~is_padding).flatten().nonzero().squeeze(1)
    final = _final_logits(stream, unembedding, shape)[positions]
    names = TokenNames(prepared.loaded, final.shape[-1])
    token = names.target(options.target)
    targets = final.argmax(-1) if token is None else torch.full_like(positions, token)
    at = [divmod(position, shape[1]) for position in positions.tolist()]
    cells = [
        cell
        for layer, prediction in read_layers(unembedding, stream, final, targets, positions)
        for cell in _cells(layer, prediction, at, targets.tolist(), names)
    ]
    return Lens(
        layers=tuple(stream.values),
        rows=_rows(call, is_padding, names),
        positions=shape[1],
        cells=tuple(cells),
        norm=stream.norm.name if stream.norm else "",
        head=stream.head.name,
        notes=_notes(stream, unembedding, final, positions),
        metadata=metadata,
    )


def _common_shape(stream: ResidualStream) -> tuple[int, int]:
    """Batch and positions, which all layers have in common."""
    shapes: dict[tuple[int, ...], str] = {}
    for layer, value in stream.values.items():
        if value.ndim != 3:
            dims = "x".join(map(str, value.shape))
            raise LayerError(
                f"The output of {layer} ({dims}) is not batch, position, width.",
                "Select the layers that return the residual stream, usually the blocks.",
            )
        shapes.setdefault(tuple(value.shape[:2]), layer)
    if len(shapes) > 1:
        (one, first), (two, second) = list(shapes.items())[:2]
        raise LayerError(
            f"{first} returns {one[1]} positions and {second} {two[1]}.",
            "Select layers with the same positions.",
        )
    if not shapes:
        raise RequestError(
            "None of the selected layers ran.", "Select layers that the model calls."
        )
    [(batch, positions)] = shapes
    return batch, positions


def _call_tensors(prepared: Prepared) -> dict[str, Tensor]:
    args, kwargs = as_call(prepared.value)
    named = {".".join(path): tensor for path, tensor in walk(kwargs)}
    first = next((tensor for _, tensor in walk(args)), None)
    if first is not None:
        named.setdefault("input_ids", first)
    return named


def _padding(call: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    mask = call.get("attention_mask")
    if mask is None or tuple(mask.shape) != shape:
        return torch.zeros(shape, dtype=torch.bool)
    return (mask == 0).cpu()


def _final_logits(
    stream: ResidualStream, unembedding: Unembedding, shape: tuple[int, int]
) -> Tensor:
    """The logits of the whole model at all positions: (batch times position, token)."""
    logits = stream.logits
    if tuple(logits.shape[:-1]) != shape:
        # A classifier reads one position: the others are read with the same norm and head.
        logits = unembedding.logits(list(stream.values.values())[-1])
    return logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))


def _cells(
    layer: str,
    prediction: Prediction,
    at: list[tuple[int, int]],
    targets: list[int],
    names: TokenNames,
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
        candidates = (Candidate(names[i], p) for i, p in zip(top, shares, strict=True))
        yield LensCell(
            layer, row, position, tuple(candidates), names[target], rank, probability, kl
        )


def _rows(call: Mapping[str, Tensor], is_padding: Tensor, names: TokenNames) -> tuple[LensRow, ...]:
    ids = call.get("decoder_input_ids", call.get("input_ids"))
    is_text = ids is not None and ids.shape == is_padding.shape and not ids.is_floating_point()
    rows = ids.tolist() if ids is not None and is_text else [()] * len(is_padding)
    return tuple(
        LensRow(tuple(names[i] for i in row), tuple(mask.nonzero().flatten().tolist()))
        for row, mask in zip(rows, is_padding, strict=True)
    )


def _notes(
    stream: ResidualStream, unembedding: Unembedding, final: Tensor, positions: Tensor
) -> tuple[str, ...]:
    """Whether the norm and the head give the model's own logits."""
    if stream.logits.ndim != 3 or stream.logits.shape[:-1] != stream.final.shape[:-1]:
        return ()
    again = unembedding.from_final(stream.final).flatten(0, -2)[positions]
    narrow = stream.logits.dtype in (torch.float16, torch.bfloat16)
    difference = largest_difference(final, again.to(final.dtype))
    if difference <= (_NARROW_TOLERANCE if narrow else _TOLERANCE):
        return ()
    return (
        f"The model changes the logits after {stream.head.name}: its output differs from them by"
        f" {difference:.2g} of the largest logit. The lens shows the logits of {stream.head.name}.",
    )
