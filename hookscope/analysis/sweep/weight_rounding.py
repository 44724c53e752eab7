"""Weights rounded to a few bits: the edit ``quantize:BITS`` of a sweep."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hookscope.errors import EditError
from hookscope.hooks.layers import Layer
from hookscope.tensors.signal_safety import SignalSafeContext

# Modules whose weight has the output channels in dimension 1, by class name.
_TRANSPOSED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


def round_weight(weight: Tensor, bits: int, channel_dim: int = 0) -> Tensor:
    """Return a weight rounded to ``bits`` bits with one scale for each output channel.

    For each channel with the largest magnitude m, the scale is s = m / (2^(bits - 1) - 1) and an
    entry w becomes s round(w / s), half to even, computed in float32 or wider and then rounded to
    the dtype of the weight. So -m and m are exact, up to that rounding, and zero stays zero. This
    is symmetric uniform quantization (Nagel et al. 2021, "A White Paper on Neural Network
    Quantization", section 2.2), without clipping.

    Args:
        weight: two or more dimensions, floating point, finite.
        bits: 2 or more.
        channel_dim: the dimension of the output channels.

    Raises:
        ValueError: an entry is NaN or infinite.

    Example:
        >>> import torch
        >>> round_weight(torch.tensor([[1.0, -0.4, 0.2], [0.0, 0.0, 0.0]]), 2)
        tensor([[1., -0., 0.],
                [0., 0., 0.]])
    """
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    others = [dim for dim in range(weight.ndim) if dim != channel_dim]
    largest = wide.abs().amax(others, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise ValueError("its weight has NaN or infinite entries")
    scale = largest / (2 ** (bits - 1) - 1)
    steps = torch.where(scale > 0, wide / scale, torch.zeros_like(wide)).round()
    rounded: Tensor = (steps * scale).to(weight.dtype)
    return rounded


def rounded_weights(layer: Layer) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield the owner, the name and the channel dimension of each weight of a layer.

    Weights are the parameters of two or more dimensions in floating point, of the layer and of all
    modules in it; biases and the weights of norms have one dimension.
    """
    for module in layer.module.modules():
        dim = 1 if type(module).__name__ in _TRANSPOSED else 0
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.ndim > 1 and parameter.is_floating_point():
                yield module, name, dim


class RoundedWeights(SignalSafeContext["RoundedWeights"]):
    """Rounds the weights of a layer while the ``with`` block runs.

    Other parameters take their places in the layer. The original ones are not changed, so a tied
    weight is rounded in this layer only.

    Args:
        layer: the layer.
        bits: number of bits.

    Raises:
        EditError: the layer has no weight, or one with entries that are not finite.
    """

    def __init__(self, layer: Layer, bits: int) -> None:
        self._original: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._rounded: list[nn.Parameter] = []
        for module, name, dim in rounded_weights(layer):
            parameter = module._parameters[name]
            assert parameter is not None
            try:
                value = round_weight(parameter, bits, dim)
            except ValueError as error:
                raise EditError(
                    f"The weights of {layer.title} ({layer.type}) cannot be rounded: {error}.",
                    "Leave out the layer.",
                    str(error),
                ) from error
            self._original.append((module, name, parameter))
            self._rounded.append(nn.Parameter(value, requires_grad=parameter.requires_grad))
        if not self._original:
            reason = "it has no weight of two or more dimensions"
            raise EditError(
                f"{layer.title} ({layer.type}) cannot be quantized: {reason}.",
                "Select layers with weights.",
                reason,
            )

    def _enter(self) -> RoundedWeights:
        try:
            for (module, name, _), new in zip(self._original, self._rounded, strict=True):
                module._parameters[name] = new
        except BaseException:
            self._restore()
            raise
        return self

    def _leave(self, *error: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for module, name, parameter in self._original:
            module._parameters[name] = parameter
