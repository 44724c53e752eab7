"""What the methods share that make a map from a layer's output."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from hookscope.errors import RequestError
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.cams.cam_input import CamInput, widen
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.score_gradients import clone_at_layer, observe_layer
from hookscope.results.records import Coverage, ExecutedModule

log = logging.getLogger("hookscope")


class LayerMethod(CamMethod):
    """A map from what one layer returned for the images.

    Attributes:
        needs_gradients: whether the score's gradient at the layer's output is used too.
    """

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
        """Return the maps (N, h, w) of a layer's output."""


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
        """Return the maps, never negative.

        Args:
            activations: what the layer returned, (N, K, H, W) with K channels.
            gradients: the gradient of the target's score there, of the same shape.

        Returns:
            The maps, (N, H, W).
        """


def on_grid(candidate: LayerCandidate, tensor: Tensor | None) -> Tensor:
    """Return a layer's value or gradient as (N, K, H, W), on the CPU, in float32 or wider."""
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
    """Return relu(sum_k w_k A_k), (N, H, W), for one weight a channel, of shape (N, K)."""
    return (weights[:, :, None, None] * activations).sum(1).relu()
