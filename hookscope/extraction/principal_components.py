"""Principal components, fitted on the first rows of a dataset and stored beside the shards."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.reducer import Reducer
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.stores.capture_file import SCHEMA
from hookscope.stores.features.folder import FIT, FITTED, file_entry, write_json
from hookscope.stores.features.location import Location

log = logging.getLogger("hookscope")

FIT_ROWS = 4096  # at most
_FIT_VALUES = 2**26  # in memory for all layers together: 256 MiB, and twice that while fitting


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
    """Fit each layer's components on the rows in ``batches`` and write them to ``location``.

    Vectors with NaN or infinite values are ignored.
    """
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
