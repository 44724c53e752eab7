"""The receptive field of a layer, from the bounds of its output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.model_analysis.receptive.dependency_rules import thin
from hookscope.model_analysis.receptive.dependency_tracker import Bounds
from hookscope.results.receptive_field import FieldSide, ReceptiveField

_LONGEST_PERIOD = 16  # units after which fields repeat, shifted, as behind a transposed convolution

Ends = NDArray[np.float64]


def field_of(bounds: Bounds, sides: Sequence[int]) -> ReceptiveField:
    """Return the receptive field of a layer's output, for an input with these sides."""
    pairs = [(bounds[2 * i], bounds[2 * i + 1]) for i in range(len(sides))]
    grids = [_varying_dims(*pair) for pair in pairs]
    return ReceptiveField(
        tuple(
            _side(*pair, dims, size, on_grid=grids.count(dims) == 1 and len(dims) == 1)
            for pair, dims, size in zip(pairs, grids, sides, strict=True)
        )
    )


def on_input(bounds: Bounds, sides: Sequence[int]) -> Tensor:
    """Return for each unit whether it depends on a position of the input, and not on padding alone.

    Args:
        bounds: of the layer's output.
        sides: of the input.
    """
    inside = torch.ones((), dtype=torch.bool)
    for i, size in enumerate(sides):
        first, last = thin(bounds[2 * i]).clamp(min=0), -thin(bounds[2 * i + 1])
        inside = inside & (first <= last.clamp(max=size - 1))
    return inside.expand(bounds[0].shape)


def field_of_unit(bounds: Bounds, unit: Sequence[int], sides: Sequence[int]) -> list[list[int]]:
    """Return the first and the last position of the input that a unit depends on, for each side."""
    ends = []
    for i, size in enumerate(sides):
        low, high = float(bounds[2 * i][tuple(unit)]), -float(bounds[2 * i + 1][tuple(unit)])
        ends.append([int(max(low, 0)), int(min(high, size - 1))])
    return ends


def _varying_dims(low: Tensor, high: Tensor) -> list[int]:
    """The dimensions along which the bounds differ."""
    return [
        dim
        for dim in range(low.ndim)
        if any(
            bool((bound.amin(dim) != bound.amax(dim)).any())
            for bound in (thin(low), thin(high))
            if bound.shape[dim] > 1
        )
    ]


def _profile(bound: Tensor, dims: list[int]) -> Ends:
    """The bound of each unit: one for each place along some dimensions, whatever the channel."""
    shape = [bound.shape[dim] for dim in dims]
    rest = [dim for dim in range(bound.ndim) if dim not in dims]
    bound = thin(bound)
    bound = bound.amin(rest) if rest else bound
    return bound.expand(shape).reshape(-1).to(torch.float64).numpy()


def _side(low: Tensor, high: Tensor, dims: list[int], size: int, *, on_grid: bool) -> FieldSide:
    first, last = _profile(low, dims), -_profile(high, dims)
    shown = np.minimum(last, size - 1) - np.maximum(first, 0) + 1
    whole = bool((shown >= size).all())
    inside = np.isfinite(first) & np.isfinite(last)
    largest = shown[inside].max() if inside.any() else shown.max()
    stride = centre = None
    if on_grid and not whole:
        stride, centre = _grid(first, last, inside)
    return FieldSide(int(max(largest, 0)), whole, not inside.any(), stride, centre)


def _grid(first: Ends, last: Ends, inside: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    """The stride, and the centre of the first unit's field, of the units that are not cut.

    Without two of them, the stride is that of the ends that are not cut, and no centre is known.
    """
    chosen = np.flatnonzero(inside)
    if len(chosen) > 1 and (step := _period([first[chosen], last[chosen]])):
        length, stride = step
        some = chosen[:length]
        return stride, float(np.mean((first[some] + last[some]) / 2 - stride * some))
    for ends in (first, last):
        known = ends[np.isfinite(ends)]
        if len(known) > 1 and (step := _period([known])):
            return step[1], None
    return None, None


def _period(ends: list[Ends]) -> tuple[int, float] | None:
    """The smallest number of units after which all ends have moved equally, and the stride."""
    longest = max(1, len(ends[0]) // 2)  # a period is seen twice, unless it is one unit
    for length in range(1, min(_LONGEST_PERIOD, longest) + 1):
        moved = {float(move) for each in ends for move in each[length:] - each[:-length]}
        if len(moved) == 1 and math.isfinite(move := moved.pop()):
            return length, move / length
    return None
