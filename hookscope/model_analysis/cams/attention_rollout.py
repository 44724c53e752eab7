"""Attention rollout: the attention weights of all layers, multiplied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.files.words import plural
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.layer_methods import LayerMethod
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.rolled_attention import (
    LayerAttention,
    read_tokens,
    record_attention,
    roll_out,
)

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
        read: which tokens of each image are read, (N, L).
    """

    needs_gradients = True  # they show which tokens the score depends on

    def __init__(self) -> None:
        self.read = torch.zeros(0, 0, dtype=torch.bool)
        self._attention: LayerAttention | None = None

    def choose_layer(self, inputs: CamInput) -> Layer | None:
        """Run the model for its attention weights; return the last layer that computes some.

        Raises:
            RequestError: the model has no attention over the whole image, or its weights are not
                known.
        """
        self._attention = record_attention(
            inputs.prepared, len(inputs.image), "image", _OTHER_METHODS
        )
        return self._attention.last

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps: the part of each patch in the tokens that the score depends on.

        Raises:
            RequestError: the tokens of the image are not known.
        """
        grid, attention = candidate.grid, self._attention
        assert grid is not None and attention is not None
        rollout = roll_out(attention.weights)
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
        return shares[:, grid.prefix :].reshape(-1, grid.height, grid.width).to(attention.dtype)

    def metadata_of(self, candidate: LayerCandidate) -> dict[str, Any]:
        """Return the names of the layers, and for each image the tokens whose rows are the map."""
        layers = self._attention.layers if self._attention else ()
        return {"layers": list(layers), "tokens": [_indices(row) for row in self.read]}

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


def _indices(row: Tensor) -> list[int]:
    indices: list[int] = row.nonzero().flatten().tolist()
    return indices
