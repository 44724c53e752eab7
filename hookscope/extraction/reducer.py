"""Each row of a layer's tensor made smaller: means, maxima, one token, the largest, components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.axes import Axes, accumulation_dtype, row_size
from hookscope.extraction.channel_statistics import histogram
from hookscope.specs.reduction import (
    ALL,
    CLS,
    FLATTEN,
    HISTOGRAM,
    MAX,
    MEAN,
    PCA,
    TOKENS,
    TOPK,
    Reduction,
)

INDEX_SUFFIX = ".index"  # behind the key of what topk kept: where it was

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Reducer:
    """What a reduction does with one layer: tensors by what is put behind the layer's key.

    Attributes:
        reduction: the words.
        key: the layer's tensor, for errors.
        axes: its dimensions.
        project: of ``pca``, what takes vectors (N, D) to components (N, K); None until fitted.
    """

    reduction: Reduction
    key: str
    axes: Axes
    project: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rows: Tensor) -> Rows:
        """Return what is kept of ``rows``; the first dimension stays."""
        return _HOW[self.reduction.name](self, rows)

    def vectors(self, rows: Tensor) -> Tensor:
        """What ``pca`` takes for one observation each, (N, D): rows, or channels at a position."""
        if self.whole:
            return rows.reshape(len(rows), row_size(rows))
        return self.axes.by_channel(rows).transpose(1, 2).flatten(0, 1)

    def parts(self, rows: Tensor) -> Tensor:
        """The numbers that are reduced together along the last dimension, (N, C, P)."""
        whole = len(rows), 1, row_size(rows)
        return rows.reshape(whole) if self.whole else self.axes.by_channel(rows)

    @property
    def whole(self) -> bool:
        """Whether a row is reduced as one: asked for, or because of the name alone."""
        over, name = self.reduction.over, self.reduction.name
        return over == ALL or (over is None and name not in (MEAN, MAX))

    def shaped(self, parts: Tensor) -> Tensor:
        """Without the dimension of channels where there was only the row as one."""
        return parts[:, 0] if self.whole or self.axes.channel is None else parts


def make_reducer(
    reduction: Reduction, key: str, shape: tuple[int, ...], dtype: torch.dtype, axes: Axes
) -> Reducer:
    """Return what ``reduction`` does with a layer's rows of ``shape``.

    Raises:
        LayerError: it makes no sense for such rows; names the layer and says why.
    """

    def refuse(why: str) -> LayerError:
        looks = "x".join(map(str, shape)) or "one number"
        return LayerError(
            f"--reduce {reduction.word} does not fit {key}, a row of which is {looks}: {why}.",
            "Leave the layer out, or choose another reduction.",
        )

    name, over = reduction.name, reduction.over
    if dtype.is_complex and name not in (FLATTEN, CLS):
        raise refuse("its values are complex")
    if not torch.Size(shape).numel():
        raise refuse("it is empty")
    if name == CLS and axes.kind != TOKENS:
        raise refuse("it has no tokens")
    if name == CLS and axes.prefix == 0:
        raise refuse("its tokens are those of the image's parts, and none stands before them")
    if over not in (None, ALL) and over != axes.kind:
        has = f"it has {axes.kind}" if axes.kind else "it has channels alone"
        raise refuse(f"{has}, and no {over}")
    made = Reducer(reduction, key, axes)
    if name in (TOPK, PCA):
        like = torch.empty(1, *shape, device="meta")
        most = (made.parts(like) if name == TOPK else made.vectors(like)).shape[-1]
        if reduction.count > most:
            raise refuse(f"there are {most} numbers to take {reduction.count} from")
    return made


def _mean(reducer: Reducer, rows: Tensor) -> Rows:
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    return {
        "": reducer.shaped(reducer.parts(rows).mean(-1, dtype=accumulation_dtype(rows)).to(wide))
    }


def _max(reducer: Reducer, rows: Tensor) -> Rows:
    return {"": reducer.shaped(reducer.parts(rows).amax(-1))}


def _cls(reducer: Reducer, rows: Tensor) -> Rows:
    return {"": rows.select(reducer.axes.positions[0], 0)}


def _flatten(reducer: Reducer, rows: Tensor) -> Rows:
    return {"": rows.reshape(len(rows), row_size(rows))}


def _topk(reducer: Reducer, rows: Tensor) -> Rows:
    values, places = largest_values(reducer.parts(rows), reducer.reduction.count)
    return {"": reducer.shaped(values), INDEX_SUFFIX: reducer.shaped(places)}


def _histogram(reducer: Reducer, rows: Tensor) -> Rows:
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return {"": reducer.shaped(histogram(reducer.parts(wide)))}


def _pca(reducer: Reducer, rows: Tensor) -> Rows:
    vectors = reducer.vectors(rows).float()
    count = reducer.reduction.count
    assert reducer.project is not None, "fitted before the first row"
    found = reducer.project(vectors)
    if reducer.whole:
        return {"": found}
    channel, positions = reducer.axes.channel, reducer.axes.positions
    assert channel is not None
    lengths = [rows.shape[dim] for dim in positions]
    return {"": found.reshape(len(rows), *lengths, count).movedim(-1, channel)}


_HOW: dict[str, Callable[[Reducer, Tensor], Rows]] = {
    MEAN: _mean,
    MAX: _max,
    CLS: _cls,
    FLATTEN: _flatten,
    TOPK: _topk,
    HISTOGRAM: _histogram,
    PCA: _pca,
}


def largest_values(parts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of the last dimension, the largest first, and where they were.

    Of equal ones the first come first, on every device, which ``torch.topk`` does not promise. NaN
    counts as smaller than all else.

    Returns:
        Values of the dtype of ``parts``, and int32 (int64 for more than 2**31 numbers).
    """
    kind = torch.int32 if parts.shape[-1] < 2**31 else torch.int64
    order = _ranks(parts)
    least = order.topk(count, -1).values[..., -1:]
    above, level = order > least, order == least
    room = count - above.sum(-1, keepdim=True)
    taken = above | (level & (level.cumsum(-1) <= room))
    places = taken.nonzero()[:, -1].reshape(*parts.shape[:-1], count)
    sort = order.gather(-1, places).sort(dim=-1, descending=True, stable=True).indices
    places = places.gather(-1, sort)
    return parts.gather(-1, places), places.to(kind)


def _ranks(values: Tensor) -> Tensor:
    """Integers in the order of the values, NaN below -inf."""
    if values.dtype == torch.bool:
        return values.int()
    if not values.is_floating_point():
        return values
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
    least, most = torch.iinfo(whole).min, torch.iinfo(whole).max
    bits = (values + 0.0).view(whole)  # which makes 0 of -0
    # The bits of a float are in its order, but for the sign; below zero they run the other way.
    return torch.where(values.isnan(), least, torch.where(bits < 0, bits ^ most, bits))
