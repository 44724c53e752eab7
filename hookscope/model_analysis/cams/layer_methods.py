"""Methods of ``cam`` that map a layer's output: Grad-CAM, its relatives, attention rollout."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.files.words import plural, shape_text
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.cams.cam_input import (
    CamAlgorithm,
    CamInput,
    CamResult,
    widen,
)
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.score_gradients import clone_at_layer, observe_layer
from hookscope.model_analysis.rolled_attention import (
    LayerAttention,
    read_tokens,
    record_attention,
    roll_out,
)
from hookscope.results.records import Coverage, ExecutedModule

log = logging.getLogger("hookscope")


_OTHER_METHODS = "Use --by gradcam or --by eigencam, which need no attention weights."


class LayerMethod(CamAlgorithm):
    """A map from what one layer returned, and from the score's gradient there if it is needed."""

    needs_gradients: ClassVar[bool] = False

    def attribute(self, inputs: CamInput) -> CamResult:
        """Run the model, by default with the last suitable layer, and return the maps."""
        prepared, score, image = inputs.prepared, inputs.score, inputs.image
        layer, gradient = self.choose_layer(inputs), self.needs_gradients
        layer_pass = observe_layer(prepared, score, inputs.path, image, layer, gradient=gradient)
        if layer_pass is None:
            layer_pass = clone_at_layer(prepared, score, image, layer, gradient=gradient)
        candidate = layer_pass.candidate
        if layer is None:
            why = " that affects the score" if candidate.needed else ""
            log.info("layer: %s (the last spatial output%s)", candidate.layer.name, why)
        maps = self.maps_of(inputs, candidate)
        module = ExecutedModule(candidate.layer.name, candidate.layer.type, layer_pass.calls)
        metadata = self.metadata_of(candidate)
        output, coverage = layer_pass.output, Coverage((module,))
        return CamResult(maps, output, coverage, candidate, metadata=metadata)

    def choose_layer(self, inputs: CamInput) -> Layer | None:
        """Return the layer to use; None for the last suitable one."""
        return inputs.layer

    def metadata_of(self, candidate: LayerCandidate) -> dict[str, Any]:
        """Return further entries of the metadata, once the maps are made."""
        return {}

    @abstractmethod
    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps (N, *grid) of a layer's output."""


class GradientLayerMethod(LayerMethod):
    """A map from what one layer returned and from the score's gradient there, by a formula."""

    needs_gradients = True

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the formula's maps of the layer's output."""
        activations = on_grid(candidate, candidate.value)
        return self.heat_map(activations, on_grid(candidate, candidate.gradient))

    @staticmethod
    @abstractmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, *grid), never negative, of values and gradients (N, K, *grid)."""


def on_grid(candidate: LayerCandidate, tensor: Tensor | None) -> Tensor:
    """Return a layer's value or gradient as (N, K, *grid), on the CPU, in float32 or wider."""
    assert candidate.grid is not None
    if tensor is None:
        raise RequestError(
            f"The score has no gradient at the output of layer {candidate.layer.title}"
            f" ({candidate.layer.type}).",
            "Choose another --layer or --target, or --by eigencam, which needs no gradient.",
        )
    return candidate.grid.maps(widen(tensor))


def finite_on_grid(candidate: LayerCandidate, why: str) -> Tensor:
    """Return a layer's value as ``on_grid`` does, for a method that needs finite values."""
    values = on_grid(candidate, candidate.value)
    count = int((~values.isfinite()).sum())
    if count:
        raise RequestError(
            f"Layer {candidate.layer.title} ({candidate.layer.type}) returned"
            f" {count} of {values.numel()} values that are NaN or infinite, and {why} needs finite"
            " ones.",
            "Find where they come from with 'hookscope check', or name an earlier --layer.",
        )
    return values


def weighted_sum(activations: Tensor, weights: Tensor) -> Tensor:
    """Return relu(sum_k w_k A_k), (N, *grid), for one weight a channel, of shape (N, K)."""
    weights = weights.reshape(*weights.shape, *[1] * (activations.ndim - 2))
    return (weights * activations).sum(1).relu()


def positions(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of the grid in (N, K, *grid)."""
    return tuple(range(2, tensor.ndim))


class GradCam(GradientLayerMethod):
    """Grad-CAM: ``gradcam`` in ``METHODS``, equations 1 and 2 of the paper."""

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, *grid) of values and gradients (N, K, *grid)."""
        return weighted_sum(activations, gradients.mean(positions(gradients)))


class GradCamPlusPlus(GradientLayerMethod):
    """Grad-CAM++: ``gradcam++`` in ``METHODS``, equations 5, 6 and 19 of the paper.

    The score is exp(S), whose factor exp(S) scales the map of an image and is left out. ``a`` is 0
    where its denominator is 0.
    """

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, *grid) of values and gradients (N, K, *grid)."""
        # Both sides of the fraction are divided by G^2, which underflows for small gradients.
        denominator = 2 + activations.sum(positions(activations), keepdim=True) * gradients
        zero = denominator == 0
        shares = torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, denominator))
        shares = shares * gradients.relu()
        return weighted_sum(activations, shares.sum(positions(shares)))


class HiResCam(GradientLayerMethod):
    """HiResCAM: ``hirescam`` in ``METHODS``."""

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, *grid) of values and gradients (N, K, *grid)."""
        return (gradients * activations).sum(1).relu()


class LayerCam(GradientLayerMethod):
    """LayerCAM: ``layercam`` in ``METHODS``, equations 4 to 6 of the paper."""

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, *grid) of values and gradients (N, K, *grid)."""
        return (gradients.relu() * activations).sum(1).relu()


class EigenCam(LayerMethod):
    """Eigen-CAM: ``eigencam`` in ``METHODS``, equation 3 of the paper. It needs no target.

    Of the two signs of the singular vector, that with which the map adds up to 0 or more is taken.
    """

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps of the layer's output."""
        return self.heat_map(finite_on_grid(candidate, "a singular vector"))

    @staticmethod
    def heat_map(activations: Tensor) -> Tensor:
        """Return the maps (N, *grid) of values (N, K, *grid), computed in float64."""
        rows = activations.flatten(2).transpose(1, 2).double()
        direction = torch.linalg.svd(rows, full_matrices=False).Vh[:, 0]
        maps = (rows @ direction.unsqueeze(2)).squeeze(2)
        maps = torch.where(maps.sum(1, keepdim=True) < 0, -maps, maps).relu()
        return maps.to(activations.dtype).reshape(len(maps), *activations.shape[2:])


class ScoreCam(LayerMethod):
    """Score-CAM: ``scorecam`` in ``METHODS``, equation 5 of the paper. One run for each channel."""

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps of the layer's output. Each run has the batch size of the images."""
        activations = finite_on_grid(candidate, "the range of a mask")
        scores, count = [], activations.shape[1]
        for channel in range(count):
            mask = channel_mask(inputs.at_input(activations[:, channel])).to(inputs.image)
            masked = inputs.image * mask.expand_as(inputs.image)
            scores.append(inputs.score.each(inputs.run(masked)))
            if inputs.progress is not None:
                inputs.progress(channel + 1, count)
        weights = torch.stack(scores, 1).softmax(1)
        return weighted_sum(activations, weights.to(activations))


def channel_mask(channel: Tensor) -> Tensor:
    """Return a channel (N, *size) as (N, 1, *size), scaled to 0..1; zeros if it has one value."""
    large = channel.unsqueeze(1)
    every = positions(large)
    low, high = large.amin(every, keepdim=True), large.amax(every, keepdim=True)
    return (large - low) / torch.where(high > low, high - low, 1.0)


class AttentionRollout(LayerMethod):
    """Attention rollout: ``rollout`` in ``METHODS``, equation 1 and section 3 of the paper.

    A token is read if the target's score of the image has a gradient at it after the last layer:
    the class token, or all tokens behind global average pooling. The layers are taken as one chain,
    each with a residual connection around it. Layers in parallel branches would be multiplied too,
    which has no meaning.
    """

    needs_gradients = True  # they show which tokens the score depends on

    def __init__(self) -> None:
        self.read = torch.zeros(0, 0, dtype=torch.bool)
        self._attention: LayerAttention | None = None

    def choose_layer(self, inputs: CamInput) -> Layer | None:
        """Run the model for its attention weights; return the last layer that computes some."""
        self._attention = record_attention(
            inputs.prepared, len(inputs.image), "image", _OTHER_METHODS
        )
        return self._attention.last

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps: the part of each patch in the tokens that the score depends on."""
        grid, attention = candidate.grid, self._attention
        assert grid is not None and attention is not None
        rollout = roll_out(attention.weights)
        count, length = math.prod(grid.sides), rollout.shape[1]
        if count + grid.prefix != length:
            raise RequestError(
                f"Layer {candidate.layer.name} attends over {length} tokens, and its output has a"
                f" grid of {shape_text(grid.sides)}: the tokens of the image are not known.",
                _OTHER_METHODS,
            )
        self.read = read_tokens(candidate.gradient, grid.prefix, rollout.shape[:2])
        self._check_position_of_extra_tokens(candidate, grid.prefix)
        unread = ~self.read.unsqueeze(2)
        shares = rollout.masked_fill(unread, 0).sum(1) / self.read.sum(1, keepdim=True)
        return shares[:, grid.prefix :].reshape(-1, *grid.sides).to(attention.dtype)

    def metadata_of(self, candidate: LayerCandidate) -> dict[str, Any]:
        """Return the names of the layers, and for each image the tokens whose rows are the map."""
        layers = self._attention.layers if self._attention else ()
        return {"layers": list(layers), "tokens": [_indices(row) for row in self.read]}

    def _check_position_of_extra_tokens(self, candidate: LayerCandidate, prefix: int) -> None:
        """Refuse images that read at most ``prefix`` tokens, all of them in the assumed grid.

        A class token behind the patches is read so, and the grid would begin at a patch too far.
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
            "Extra tokens, such as a class token, must come before the tokens of the image."
            f" {_OTHER_METHODS}",
        )


def _indices(row: Tensor) -> list[int]:
    indices: list[int] = row.nonzero().flatten().tolist()
    return indices
