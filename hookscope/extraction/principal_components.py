"""Principal components, fitted on the first rows of a dataset and kept beside the shards."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.reducer import Reducer
from hookscope.files import strict_json
from hookscope.results.capture_file import SCHEMA
from hookscope.results.features.folder import FIT, FITTED, file_entry, write_json
from hookscope.results.features.location import Location
from hookscope.specs.output_path import MARK

log = logging.getLogger("hookscope")

FIT_ROWS = 4096  # at most
_FIT_VALUES = 2**26  # held at once, of all layers together: 256 MiB, and twice that while fitting


@dataclass(frozen=True)
class PrincipalComponents:
    """Directions in which vectors differ most, the first most of all.

    Attributes:
        mean: of the vectors, float32, (D,).
        components: orthonormal, float32, (K, D); the largest entry of each is positive.
        variance: that each explains, divided by n - 1, float32, (K,).
    """

    mean: Tensor
    components: Tensor
    variance: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return (N, K) of vectors (N, D)."""
        mean, components = self.mean.to(vectors.device), self.components.to(vectors.device)
        return (vectors - mean) @ components.T


def fit_components(vectors: Tensor, count: int) -> PrincipalComponents:
    """Find the first ``count`` components of ``vectors`` (N, D), N above ``count``.

    In float64, by the eigenvectors of whichever product of the centred vectors is the smaller. A
    direction in which nothing differs is all zeros.
    """
    mean = vectors.mean(0, dtype=torch.float64)
    centred = vectors.double() - mean
    n, d = centred.shape
    product = centred.T @ centred if d <= n else centred @ centred.T
    values, found = torch.linalg.eigh(product)
    values, found = values.flip(0)[:count].clamp(min=0), found.flip(1)[:, :count]
    rows = found.T if d <= n else found.T @ centred
    size = rows.norm(dim=1, keepdim=True)
    real = values.unsqueeze(1) > values[0] * max(n, d) * torch.finfo(torch.float64).eps
    rows = torch.where(real, rows / size.clamp(min=torch.finfo(torch.float64).tiny), 0)
    signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
    return PrincipalComponents(mean.float(), (rows * signs).float(), (values / (n - 1)).float())


def fit_row_count(row_numbers: int, rows: int) -> int:
    """How many of ``rows`` are fitted on, where one has ``row_size`` numbers in all layers."""
    return min(FIT_ROWS, rows, max(_FIT_VALUES // max(row_numbers, 1), 1))


def fit_layers(
    reducers: Mapping[str, Reducer], batches: Iterable[Mapping[str, Tensor]], place: Location
) -> None:
    """Fit each layer's components on the rows in ``batches`` and write them to ``place``.

    Vectors with NaN or infinite numbers are left out.

    Raises:
        LayerError: too few vectors are left.
    """
    held: dict[str, list[Tensor]] = {key: [] for key in reducers}
    for batch in batches:
        for key, reducer in reducers.items():
            held[key].append(reducer.vectors(batch[key]).float().cpu())
    tensors: dict[str, Tensor] = {}
    for key, reducer in reducers.items():
        vectors = torch.cat(held.pop(key))
        vectors = vectors[vectors.isfinite().all(1)]
        count = reducer.reduction.count
        if len(vectors) <= count:
            raise LayerError(
                f"--reduce {reducer.reduction.word} has {len(vectors)} observations of {key} to"
                f" find {count} components in, and needs more than that.",
                "Ask for fewer components, or give more inputs"
                + (
                    ", or take the channels of each position for observations: --reduce"
                    f" pca:{count}:{reducer.axes.kind}"
                    if reducer.axes.kind and reducer.whole
                    else "."
                ),
            )
        found = fit_components(vectors, count)
        tensors[f"{key}.mean"], tensors[f"{key}.components"] = found.mean, found.components
        tensors[f"{key}.explained_variance"] = found.variance
        log.info("%s: %d components, fitted on %d vectors", key, count, len(vectors))
    told: dict[str, Any] = {"schema": SCHEMA, "keys": list(reducers)}
    text = strict_json.dumps(told, sort_keys=True)
    place.write(FITTED, save(tensors, {MARK: text}))
    write_json(place, FIT, file_entry(place, FITTED))


def read_components(keys: Iterable[str], place: Location) -> dict[str, PrincipalComponents]:
    """Return what ``fit_layers`` wrote."""
    with place.open(FITTED) as file:
        tensors = load(file.read())
    names = ("mean", "components", "explained_variance")
    return {key: PrincipalComponents(*(tensors[f"{key}.{name}"] for name in names)) for key in keys}
