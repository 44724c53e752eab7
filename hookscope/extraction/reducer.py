"""Reductions of each row of a layer's tensor: mean, maximum, one token, top-k, components."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.axes import Axes, accumulation_dtype, row_size
from hookscope.extraction.channel_statistics import histogram
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.files.words import shape_text
from hookscope.specs.extract_options import (
    ALL,
    CLS,
    FIRST,
    FLATTEN,
    HISTOGRAM,
    INDEX_SUFFIX,
    LAST,
    MAX,
    MEAN,
    PCA,
    TOKENS,
    TOPK,
    Reduction,
)
from hookscope.stores.capture_file import SCHEMA
from hookscope.stores.features.folder import FIT, FITTED, file_entry, write_json
from hookscope.stores.features.location import Location

NO_INDEX = -1  # the index of a value that a row with fewer than K tokens does not have

ReducedRows = dict[str, Tensor]


log = logging.getLogger("hookscope")
FIT_ROWS = 4096  # at most
_FIT_VALUES = 2**26  # in memory for all layers together: 256 MiB, and twice that while fitting


@dataclass(frozen=True)
class Reducer:
    """Applies a reduction to the rows of one layer. Results are keyed by a suffix to its key."""

    reduction: Reduction
    key: str
    axes: Axes
    varies: bool = False
    places: bool = False
    project: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rows: Tensor, mask: Tensor | None = None) -> ReducedRows:
        """Return the reduced ``rows``; the first dimension stays."""
        name = self.reduction.name
        whole = self.whole and name in (MEAN, MAX, TOPK)
        real = None if whole else token_mask(self.axes, rows, mask)
        if real is not None and name in _MASKED:
            return _MASKED[name](self, rows, real)
        return _REDUCTIONS[name](self, rows)

    def vectors(self, rows: Tensor) -> Tensor:
        """The observations of ``pca``, (N, D): rows, or the channels at each position."""
        if self.whole:
            return rows.reshape(len(rows), row_size(rows))
        return self.axes.by_channel(rows).transpose(1, 2).flatten(0, 1)

    def parts(self, rows: Tensor) -> Tensor:
        """The values to reduce along the last dimension, (N, C, P)."""
        if self.whole:
            return rows.reshape(len(rows), 1, row_size(rows))
        return self.axes.by_channel(rows)

    @property
    def whole(self) -> bool:
        """Whether a row is reduced as a whole: requested, or the default of the reduction."""
        over, name = self.reduction.over, self.reduction.name
        return over == ALL or (over is None and name not in (MEAN, MAX))

    def drop_channel(self, parts: Tensor) -> Tensor:
        """Remove the dimension of the channels if ``parts`` added it."""
        return parts[:, 0] if self.whole or self.axes.channel is None else parts


def make_reducer(
    reduction: Reduction,
    key: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axes: Axes,
    varies: bool = False,
) -> Reducer:
    """Return the reducer of a layer's rows of ``shape``; see ``Reducer`` for ``varies``."""

    def error(reason: str) -> LayerError:
        return LayerError(
            f"--reduce {reduction.text} cannot be applied to {key} (shape of a row:"
            f" {shape_text(shape, 'one number')}): {reason}.",
            "Leave the layer out, or choose another reduction.",
        )

    name, over = reduction.name, reduction.over
    if dtype.is_complex and name not in (FLATTEN, FIRST, LAST, CLS):
        raise error("its values are complex")
    if not torch.Size(shape).numel():
        raise error("it is empty")
    if name in (FIRST, LAST, CLS) and axes.kind != TOKENS:
        raise error("it has no tokens")
    if name == CLS and axes.prefix == 0:
        raise error("its tokens are image patches, with no class token before them")
    if over not in (None, ALL) and over != axes.kind:
        raise error(f"it has {axes.kind or 'channels'}, but no {over}")
    reducer = Reducer(reduction, key, axes, varies)
    if name in (TOPK, PCA) and not varies:
        row = torch.empty(1, *shape, device="meta")
        most = (reducer.parts(row) if name == TOPK else reducer.vectors(row)).shape[-1]
        if reduction.count > most:
            raise error(f"{reduction.count} is more than the {most} values to choose from")
    return reducer


def _mean(reducer: Reducer, rows: Tensor) -> ReducedRows:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    mean = reducer.parts(rows).mean(-1, dtype=accumulation_dtype(rows))
    return {"": reducer.drop_channel(mean.to(dtype))}


def _max(reducer: Reducer, rows: Tensor) -> ReducedRows:
    return _largest(reducer, reducer.parts(rows))


def _largest(reducer: Reducer, parts: Tensor) -> ReducedRows:
    if not reducer.places:
        return {"": reducer.drop_channel(parts.amax(-1))}
    values, indices = parts.max(-1)  # of equal values the first
    found = {"": values, INDEX_SUFFIX: indices.to(torch.int32)}
    return {suffix: reducer.drop_channel(tensor) for suffix, tensor in found.items()}


def _first(reducer: Reducer, rows: Tensor) -> ReducedRows:
    return {"": rows.select(reducer.axes.positions[0], 0)}


def _last(reducer: Reducer, rows: Tensor) -> ReducedRows:
    return {"": rows.select(reducer.axes.positions[0], -1)}


def _flatten(reducer: Reducer, rows: Tensor) -> ReducedRows:
    return {"": rows.reshape(len(rows), row_size(rows))}


def _topk(reducer: Reducer, rows: Tensor) -> ReducedRows:
    if reducer.varies:  # the texts of a batch may have no padding, but fewer than K tokens
        return _masked_topk(reducer, rows, rows.new_ones(1, 1, dtype=torch.bool))
    values, indices = largest_values(reducer.parts(rows), reducer.reduction.count)
    return {"": reducer.drop_channel(values), INDEX_SUFFIX: reducer.drop_channel(indices)}


def _histogram(reducer: Reducer, rows: Tensor) -> ReducedRows:
    values = rows if rows.dtype == torch.float64 else rows.float()
    return {"": reducer.drop_channel(histogram(reducer.parts(values)))}


def _pca(reducer: Reducer, rows: Tensor) -> ReducedRows:
    vectors = reducer.vectors(rows).float()
    count = reducer.reduction.count
    assert reducer.project is not None, "fitted before the first row"
    projected = reducer.project(vectors)
    if reducer.whole:
        return {"": projected}
    channel, positions = reducer.axes.channel, reducer.axes.positions
    assert channel is not None
    lengths = [rows.shape[dim] for dim in positions]
    return {"": projected.reshape(len(rows), *lengths, count).movedim(-1, channel)}


_REDUCTIONS: dict[str, Callable[[Reducer, Tensor], ReducedRows]] = {
    MEAN: _mean,
    MAX: _max,
    FIRST: _first,
    LAST: _last,
    CLS: _first,
    FLATTEN: _flatten,
    TOPK: _topk,
    HISTOGRAM: _histogram,
    PCA: _pca,
}


def token_mask(axes: Axes, rows: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the mask on the device of ``rows`` if its positions are the tokens of the rows."""
    if mask is None or axes.kind != TOKENS or rows.shape[axes.positions[0]] != mask.shape[1]:
        return None
    return mask.to(rows.device)


def _masked_mean(reducer: Reducer, rows: Tensor, mask: Tensor) -> ReducedRows:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    wide = reducer.parts(rows).to(accumulation_dtype(rows))
    total = torch.where(mask.unsqueeze(1), wide, 0).sum(-1)
    return {"": (total / mask.sum(1, keepdim=True)).to(dtype)}


def _masked_max(reducer: Reducer, rows: Tensor, mask: Tensor) -> ReducedRows:
    parts = reducer.parts(rows)
    least = float("-inf") if rows.is_floating_point() else torch.iinfo(rows.dtype).min
    return _largest(reducer, torch.where(mask.unsqueeze(1), parts, least))


def _masked_topk(reducer: Reducer, rows: Tensor, mask: Tensor) -> ReducedRows:
    """The largest values of real tokens; a row with fewer than K of them is filled up."""
    parts, count = reducer.parts(rows), reducer.reduction.count
    mask = mask.unsqueeze(1).expand_as(parts)
    if (missing := count - parts.shape[-1]) > 0:
        parts, mask = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (parts, mask))
    values, indices = largest_values(parts, count, mask)
    real = mask.gather(-1, indices.long())
    filling = float("nan") if values.is_floating_point() else 0
    found = {
        "": values.masked_fill(~real, filling),
        INDEX_SUFFIX: indices.masked_fill(~real, NO_INDEX),
    }
    return {suffix: reducer.drop_channel(tensor) for suffix, tensor in found.items()}


def _masked_first(reducer: Reducer, rows: Tensor, mask: Tensor) -> ReducedRows:
    return {"": _tokens_at(reducer, rows, mask.int().argmax(1))}


def _masked_last(reducer: Reducer, rows: Tensor, mask: Tensor) -> ReducedRows:
    back = mask.flip(1).int().argmax(1)
    return {"": _tokens_at(reducer, rows, mask.shape[1] - 1 - back)}


def _tokens_at(reducer: Reducer, rows: Tensor, index: Tensor) -> Tensor:
    """The values of one token of each row."""
    tokens = rows.movedim(reducer.axes.positions[0], 1)
    return tokens[torch.arange(len(rows), device=rows.device), index]


_MASKED: dict[str, Callable[[Reducer, Tensor, Tensor], ReducedRows]] = {
    MEAN: _masked_mean,
    MAX: _masked_max,
    FIRST: _masked_first,
    LAST: _masked_last,
    CLS: _masked_first,
    TOPK: _masked_topk,
}


def largest_values(parts: Tensor, count: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the largest values of the last dimension in descending order, and their indices.

    Equal values keep their order on every device, which ``torch.topk`` does not guarantee. NaN is
    smaller than any other value.
    """
    index_dtype = torch.int32 if parts.shape[-1] < 2**31 else torch.int64
    order = _sort_keys(parts)
    if mask is not None:
        order = order.where(mask, torch.iinfo(order.dtype).min)
    threshold = order.topk(count, -1).values[..., -1:]
    above, equal = order > threshold, order == threshold
    remaining = count - above.sum(-1, keepdim=True)
    selected = above | (equal & (equal.cumsum(-1) <= remaining))
    indices = selected.nonzero()[:, -1].reshape(*parts.shape[:-1], count)
    sort = order.gather(-1, indices).sort(dim=-1, descending=True, stable=True).indices
    indices = indices.gather(-1, sort)
    return parts.gather(-1, indices), indices.to(index_dtype)


def _sort_keys(values: Tensor) -> Tensor:
    """Integers in the order of the values, NaN below -inf, and the smallest integer unused.

    (Only the smallest int64 value itself uses it.)
    """
    if not values.is_floating_point():
        return values.long()
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
    least, most = torch.iinfo(integer).min, torch.iinfo(integer).max
    bits = (values + 0.0).view(integer)  # -0.0 becomes 0.0
    # The bits of positive floats are in the order of the floats, those of negative ones reversed.
    return torch.where(values.isnan(), least + 1, torch.where(bits < 0, bits ^ most, bits))


@dataclass(frozen=True)
class PrincipalComponents:
    """The directions in which vectors vary most, in descending order of variance."""

    mean: Tensor
    components: Tensor
    variance: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return (N, K) of vectors (N, D)."""
        mean, components = self.mean.to(vectors.device), self.components.to(vectors.device)
        return (vectors - mean) @ components.T


def fit_components(vectors: Tensor, count: int) -> PrincipalComponents:
    """Compute the first ``count`` components of ``vectors`` (N, D), N above ``count``.

    In float64, from the eigenvectors of the smaller of the two products of the centred vectors. A
    direction without variance is all zeros.
    """
    mean = vectors.mean(0, dtype=torch.float64)
    centred = vectors.double() - mean
    n, d = centred.shape
    product = centred.T @ centred if d <= n else centred @ centred.T
    values, eigenvectors = torch.linalg.eigh(product)
    values, eigenvectors = values.flip(0)[:count].clamp(min=0), eigenvectors.flip(1)[:, :count]
    components = eigenvectors.T if d <= n else eigenvectors.T @ centred
    norms = components.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    nonzero = values.unsqueeze(1) > values[0] * max(n, d) * torch.finfo(torch.float64).eps
    components = torch.where(nonzero, components / norms, 0)
    signs = components.gather(1, components.abs().argmax(1, keepdim=True)).sign()
    variance = (values / (n - 1)).float()
    return PrincipalComponents(mean.float(), (components * signs).float(), variance)


def fit_row_count(values_per_row: int, rows: int) -> int:
    """How many of ``rows`` to fit on, if a row has ``values_per_row`` values in all layers."""
    return min(FIT_ROWS, rows, max(_FIT_VALUES // max(values_per_row, 1), 1))


def fit_layers(
    reducers: Mapping[str, Reducer], batches: Iterable[Mapping[str, Tensor]], location: Location
) -> None:
    """Fit each layer's components on the finite vectors in ``batches``, and write them."""
    collected: dict[str, list[Tensor]] = {key: [] for key in reducers}
    for batch in batches:
        for key, reducer in reducers.items():
            collected[key].append(reducer.vectors(batch[key]).float().cpu())
    tensors: dict[str, Tensor] = {}
    for key, reducer in reducers.items():
        vectors = torch.cat(collected.pop(key))
        vectors = vectors[vectors.isfinite().all(1)]
        count = reducer.reduction.count
        if len(vectors) <= count:
            raise LayerError(
                f"--reduce {reducer.reduction.text} needs more than {count} observations of {key},"
                f" and there are {len(vectors)}.",
                "Use fewer components or more inputs"
                + (
                    ", or make the channels at each position an observation: --reduce"
                    f" pca:{count}:{reducer.axes.kind}"
                    if reducer.axes.kind and reducer.whole
                    else "."
                ),
            )
        fitted = fit_components(vectors, count)
        tensors[f"{key}.mean"], tensors[f"{key}.components"] = fitted.mean, fitted.components
        tensors[f"{key}.explained_variance"] = fitted.variance
        log.info("%s: %d components, fitted on %d vectors", key, count, len(vectors))
    text = strict_json.dumps({"schema": SCHEMA, "keys": list(reducers)}, sort_keys=True)
    location.write(FITTED, save(tensors, {MARK: text}))
    write_json(location, FIT, file_entry(location, FITTED))


def read_components(keys: Iterable[str], location: Location) -> dict[str, PrincipalComponents]:
    """Return the components that ``fit_layers`` wrote, by key."""
    with location.open(FITTED) as file:
        tensors = load(file.read())
    names = ("mean", "components", "explained_variance")
    return {key: PrincipalComponents(*(tensors[f"{key}.{name}"] for name in names)) for key in keys}
