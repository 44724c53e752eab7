"""Attention rollout: the attention weights of all layers, multiplied."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookscope.analysis.cams.cam_input import CamInput, widen
from hookscope.analysis.cams.layer_scan import LayerCandidate
from hookscope.analysis.cams.methods.layer_method import LayerMethod
from hookscope.errors import RequestError
from hookscope.execution.recorded_run import run_forward
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.results.records import Record
from hookscope.specs.record_kinds import ATTENTION
from hookscope.views.text.formats import plural

log = logging.getLogger("hookscope")

_OTHER_METHODS = "Use --by gradcam or --by eigencam, which need no attention weights."


class AttentionRollout(LayerMethod):
    """Attention rollout.

    The rollout is R = B_n ... B_2 B_1, where B_i = (W_i + I) / 2 and W_i is the mean over the heads
    of the attention weights of layer i. The identity I stands for the residual connection; the rows
    of B_i add up to 1, as those of W_i do. The map of an image is the mean of the rows of R of the
    tokens that are read, at the columns of the patches. A token is read if the target's score of
    this image has a gradient at it after the last layer: the class token, or all tokens behind
    global average pooling. R does not depend on the target; the tokens that are read may.

    The layers are taken as one chain, each with a residual connection around it. Layers in parallel
    branches would be multiplied too, which has no meaning.

    The weights are those that ``capture --attention`` records. Those inside a fused kernel are
    recomputed, and used only if they reproduce its output.

    S. Abnar, W. Zuidema: Quantifying Attention Flow in Transformers, 2020 (arXiv:2005.00928),
    equation 1 and section 3.

    Attributes:
        weights: of each layer with attention, (N, L, L), in execution order.
        layers: the names of these layers.
        read: which tokens of each image are read, (N, L).

    Example:
        >>> AttentionRollout.roll_out([torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])] * 2)
        tensor([[[0.2500, 0.7500],
                 [0.0000, 1.0000]]], dtype=torch.float64)
    """

    needs_gradients = True  # they show which tokens the score depends on

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.layers: list[str] = []
        self.read = torch.zeros(0, 0, dtype=torch.bool)
        self._dtype = torch.float32

    def choose_layer(self, inputs: CamInput) -> Layer | None:
        """Run the model for its attention weights; return the last layer that computes some.

        Raises:
            RequestError: the model has no attention over the whole image, or its weights are not
                known.
        """
        every = tuple(layers_of(inputs.prepared.module))
        capture = run_forward(replace(inputs.prepared, layers=every), {ATTENTION}).capture
        records = _attention_records(capture, inputs)
        self.layers = [record.module for record in records]
        self.weights = [_mean_of_heads(capture, r, len(inputs.image)) for r in records]
        for record, weights in zip(records, self.weights, strict=True):
            if weights.shape != self.weights[0].shape:
                raise RequestError(
                    f"Layer {record.module} attends over {weights.shape[1]} tokens, and"
                    f" {self.layers[0]} over {self.weights[0].shape[1]}, so they cannot be"
                    " multiplied.",
                    _OTHER_METHODS,
                )
        self._dtype = widen(capture[records[-1].key]).dtype
        last = next(layer for layer in every if layer.name == self.layers[-1])
        log.info(
            "layers: %s to %s (all %d with attention)", self.layers[0], last.name, len(records)
        )
        return last

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps: the part of each patch in the tokens that the score depends on.

        Raises:
            RequestError: the tokens of the image are not known.
        """
        grid, rollout = candidate.grid, self.roll_out(self.weights)
        assert grid is not None
        count, length = grid.height * grid.width, rollout.shape[1]
        if count + grid.prefix != length:
            raise RequestError(
                f"Layer {candidate.layer.name} attends over {length} tokens, and its output has a"
                f" grid of {grid.height}x{grid.width}: the tokens of the image are not known.",
                _OTHER_METHODS,
            )
        self.read = read_tokens(candidate.gradient, grid.prefix, rollout.shape[:2])
        self._check_position_of_extra_tokens(candidate, grid.prefix)
        unread = ~self.read.unsqueeze(2)
        shares = rollout.masked_fill(unread, 0).sum(1) / self.read.sum(1, keepdim=True)
        return shares[:, grid.prefix :].reshape(-1, grid.height, grid.width).to(self._dtype)

    def metadata_of(self, candidate: LayerCandidate) -> dict[str, Any]:
        """Return the names of the layers, and for each image the tokens whose rows are the map."""
        return {"layers": self.layers, "tokens": [_indices(row) for row in self.read]}

    def _check_position_of_extra_tokens(self, candidate: LayerCandidate, prefix: int) -> None:
        """Refuse images that read at most ``prefix`` tokens, all of them in the assumed grid.

        A class token behind the patches is read so, and the grid would then begin at a patch too
        far. Pooling reads the whole grid.
        """
        before, grid = self.read[:, :prefix], self.read[:, prefix:]
        misplaced = ~before.any(1) & (grid.sum(1) <= prefix) & ~grid.all(1)
        if not misplaced.any():
            return
        tokens = _indices(self.read[misplaced][0])
        raise RequestError(
            f"After layer {candidate.layer.name} the score depends only on"
            f" {plural(len(tokens), 'token')} ({', '.join(map(str, tokens))} of"
            f" {self.read.shape[1]}, from 0), which would be a part of the image if the"
            f" {plural(prefix, 'extra token')} came first.",
            "Extra tokens, such as a class token, must come before those of the image."
            f" {_OTHER_METHODS}",
        )

    @staticmethod
    def roll_out(weights: Sequence[Tensor]) -> Tensor:
        """Return the rollout, (N, L, L), of weights (N, L, L), computed in float64."""
        identity = torch.eye(weights[0].shape[1], dtype=torch.float64)
        rollout = identity.expand(weights[0].shape)
        for layer in weights:
            rollout = (layer.double() + identity) / 2 @ rollout
        return rollout


def read_tokens(gradient: Tensor | None, prefix: int, size: Sequence[int]) -> Tensor:
    """Return which tokens the score of each image depends on, bool (N, L).

    They are the tokens that it has a gradient at. An image without any, as behind a last layer of
    zeros, reads the first token if tokens precede those of the image, else all.

    Args:
        gradient: the score's gradient after the last layer, (N, L, C); None if there is none.
        prefix: number of tokens before those of the image.
        size: N and L.

    Example:
        >>> read_tokens(torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]]]), 1, (2, 2))
        tensor([[False,  True],
                [ True, False]])
    """
    read = torch.zeros(*size, dtype=torch.bool)
    if gradient is not None and gradient.ndim == 3:
        read = gradient.ne(0).any(2).cpu()
    default = torch.arange(size[1]) < (1 if prefix else size[1])
    return torch.where(read.any(1, keepdim=True), read, default)


def _indices(row: Tensor) -> list[int]:
    indices: list[int] = row.nonzero().flatten().tolist()
    return indices


def _attention_records(capture: Capture, inputs: CamInput) -> list[Record]:
    """The attention of the model in execution order."""
    spec = inputs.prepared.loaded.spec
    if capture.absent:
        hidden = capture.absent[0]
        raise RequestError(
            f"The attention weights of layer {hidden.module} ({hidden.type}) are not known:"
            f" {hidden.reason}.",
            _OTHER_METHODS,
        )
    if not capture.records:
        raise RequestError(
            f"{spec} computes no attention weights, and a rollout multiplies those of all layers.",
            _OTHER_METHODS,
        )
    return list(capture.records)


def _mean_of_heads(capture: Capture, record: Record, batch: int) -> Tensor:
    """Attention weights (N, heads, L, L), or (N, L, L) of one head, as their mean (N, L, L)."""
    weights = widen(capture[record.key])
    shape = "x".join(map(str, weights.shape))
    if weights.ndim not in (3, 4) or weights.shape[0] != batch:
        raise RequestError(
            f"The attention weights of layer {record.module} ({record.type}) are {shape}: they are"
            f" not those of {batch} whole image{'s' * (batch > 1)}, but of windows, for example.",
            _OTHER_METHODS,
        )
    if weights.shape[-1] != weights.shape[-2]:
        raise RequestError(
            f"The attention weights of layer {record.module} ({record.type}) are {shape}: its"
            " queries and its keys are different tokens.",
            _OTHER_METHODS,
        )
    return weights.double().mean(1) if weights.ndim == 4 else weights
