"""Edits of weights: while a run lasts, edited copies take the places of parameters in layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from hookscope.errors import EditError
from hookscope.hooks.edits.bound_edit import BoundEdit, edit_error
from hookscope.specs.patterns import ROOT

# Modules whose weight has the output channels in dimension 1, by class name.
_TRANSPOSED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


def round_weight(weight: Tensor, bits: int, channel_dim: int = 0) -> Tensor:
    """Return a weight rounded to ``bits`` bits with one scale for each output channel.

    For the largest magnitude m of a channel, s = m / (2^(bits - 1) - 1), and an entry w becomes
    s round(w / s), half to even, in float32 or wider: symmetric uniform quantization (Nagel et al.
    2021, "A White Paper on Neural Network Quantization", section 2.2), without clipping.
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


# Each takes a weight, the argument of the edit, and the dimension of the output channels.
WEIGHT_OPERATIONS: dict[str, Callable[[Tensor, Any, int], Tensor]] = {
    "quantize-weights": round_weight,
}


Weights = dict[str, nn.Parameter]  # of a module, by name


class _Place(NamedTuple):
    """Where a module has a parameter."""

    module: nn.Module
    name: str


class EditedWeights:
    """The weights of layers after their edits, which take the places of the original ones.

    So a weight that is tied to another layer's is edited in the chosen layer only.
    """

    def __init__(self, bounds: Iterable[BoundEdit]) -> None:
        self.changed: dict[int, list[str]] = {}
        # By module, and then by name; a module that is deleted takes its weights with it.
        self._original: WeakKeyDictionary[nn.Module, Weights] = WeakKeyDictionary()
        self._edited: WeakKeyDictionary[nn.Module, Weights] = WeakKeyDictionary()
        seen: set[tuple[int, _Place]] = set()
        first: dict[int, BoundEdit] = {}
        for bound in bounds:
            first.setdefault(bound.position, bound)
            keys = self.changed.setdefault(bound.position, [])
            for key, place in _weights_of(bound):
                if (bound.position, place) not in seen:
                    seen.add((bound.position, place))
                    self._edit(bound, place)
                    keys.append(key)
        for position, keys in self.changed.items():
            if not keys:
                raise edit_error(
                    first[position],
                    "it has no weight of two or more dimensions in floating point",
                    "Select layers with weights.",
                )

    def _edit(self, bound: BoundEdit, place: _Place) -> None:
        parameter = place.module._parameters[place.name]
        assert parameter is not None
        edited = self._edited.setdefault(place.module, {})
        before = edited.get(place.name, parameter)
        dim = 1 if type(place.module).__name__ in _TRANSPOSED else 0
        try:
            value = WEIGHT_OPERATIONS[bound.edit.name](before, bound.edit.argument, dim)
        except (RuntimeError, ValueError, TypeError) as error:  # also weights that are not loaded
            reason = str(error).splitlines()[0].rstrip(".")
            raise edit_error(bound, reason, "Leave out the layer.") from error
        self._original.setdefault(place.module, {}).setdefault(place.name, parameter)
        edited[place.name] = nn.Parameter(value, requires_grad=parameter.requires_grad)

    def put(self) -> None:
        """Put the edited weights into their layers; if that fails, restore the original ones."""
        try:
            for module, weights in self._edited.items():
                module._parameters.update(weights)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put the original weights back."""
        for module, weights in self._original.items():
            module._parameters.update(weights)


def check_weights(bound: BoundEdit) -> str:
    """Return why an edit cannot change the weights of its layer; empty if it can."""
    try:
        EditedWeights([bound])
    except EditError as error:
        return error.reason
    return ""


def _weights_of(bound: BoundEdit) -> Iterator[tuple[str, _Place]]:
    """The key and the place of each parameter of a layer with two or more dimensions of floats."""
    for inner, module in bound.layer.module.named_modules():
        # A hook of ``weight_norm`` or ``spectral_norm`` computes the weight too.
        has_old_norm = any(hasattr(module, f"weight{end}") for end in ("_g", "_orig"))
        if isinstance(module, ParametrizationList) or has_old_norm:
            raise edit_error(
                bound, "its weight is computed from other parameters", "Leave out the layer."
            )
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.ndim < 2 or not parameter.numel():
                continue
            if parameter.is_floating_point():
                path = [part for part in (bound.layer.name, inner) if part not in ("", ROOT)]
                yield f"{'.'.join(path) or ROOT}/{name}", _Place(module, name)
