"""The rows of a layer as points of a picture, with their nearest rows and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.layer_rows import (
    LayerRows,
    Matrix,
    RowScan,
    RowStream,
    row_count,
    row_counter,
    row_preparation,
    scan_layers,
    usable_rows,
)
from hookscope.file_analysis.principal_axes import principal_axes
from hookscope.file_analysis.similarity_measures import nearest_rows
from hookscope.file_analysis.unit_layer import one_layer
from hookscope.files.optional_packages import optional_package
from hookscope.files.progress_types import Progress
from hookscope.files.words import count_text
from hookscope.results.feature_scatter import FeatureScatter, ScatterPoint
from hookscope.specs.features_options import EUCLIDEAN, PCA, TSNE, ScatterOptions
from hookscope.stores.features.features import Features

MEMORY = 10**9  # bytes for pairs of rows
MOST_POINTS = 5000  # that are drawn; of more rows, a sample is
MOST_PRODUCTS = 4096  # features, or rows, whose products are computed
MIN_ROWS = 3
_FIRST_AXES = 50  # of which UMAP and t-SNE are computed
_LABEL = "label"


def scatter_rows(
    features: Features,
    names: Sequence[str],
    options: ScatterOptions,
    seed: int,
    progress: Progress | None = None,
) -> FeatureScatter:
    """Return the rows of a layer of a folder as points."""
    method = options.method or PCA
    with_labels = _LABEL if _LABEL in features.columns else None
    color_by = options.color_by or with_labels
    layer = _chosen_layer(features, names)
    values = None if color_by is None else features.column(color_by)
    numbers, notes = usable_rows(features, None, 1)
    if len(numbers) < MIN_ROWS:
        raise RequestError(
            f"{row_count(len(numbers))} of {features.folder} can be used, and a scatter needs at"
            f" least {MIN_ROWS}.",
            "Extract more inputs.",
        )
    drawn = _sample(numbers, MOST_POINTS, seed)
    fitted = numbers if layer.width <= MOST_PRODUCTS else _sample(numbers, MOST_PRODUCTS, seed)
    advance = row_counter(progress, 2 * len(numbers) + 2 * len(fitted) + 2 * len(drawn))
    stream = RowStream([layer], numbers, advance)
    scan = scan_layers(stream)[0]
    _check_rows(layer, scan)
    if len(fitted) < len(numbers):
        scan = scan_layers(replace(stream, numbers=fitted))[0]
        _check_rows(layer, scan)
    count = 2 if method == PCA else _FIRST_AXES
    count = max(min(count, layer.width, len(fitted) - 1), 2)
    axes = principal_axes(replace(stream, numbers=fitted), scan.mean, count, MEMORY)
    places, about = axes.project(replace(stream, numbers=drawn)), "PCA"
    if method != PCA:
        places, about = _embedded(places, method, seed)
    count = min(options.neighbors, len(numbers) - 1)
    near, gaps = nearest_rows(
        stream, 0, drawn, row_preparation(EUCLIDEAN, scan.mean), count, MEMORY, EUCLIDEAN
    )
    rows, distances = numbers[near], np.sqrt(gaps[:, -1])
    notes += _notes(layer, numbers, drawn, fitted, seed)
    if count < options.neighbors:
        notes.append(f"Each row has only {count} others, so these are its neighbours.")
    inputs = _inputs(features, drawn)
    points = tuple(
        ScatterPoint(
            int(row),
            *inputs[int(row)],
            float(places[i, 0]),
            float(places[i, 1]),
            None if values is None else values[row],
            tuple(map(int, rows[i])),
            float(distances[i]),
        )
        for i, row in enumerate(drawn)
    )
    return FeatureScatter(
        features.folder,
        str(features.manifest["model"]["spec"]),
        layer.key,
        layer.rows.shape[1:],
        method,
        about,
        tuple(map(float, axes.shares)) if method == PCA else (),
        color_by,
        len(numbers),
        points,
        tuple(notes),
        places=features.places_of_inputs(options.input),
    )


def _chosen_layer(features: Features, names: Sequence[str]) -> LayerRows:
    try:
        return one_layer(features, names, "drawn")
    except RequestError as error:
        if column := next((name for name in names if name in features.columns), None):
            hint = f"{column} is a stored column. Name it with --color-by."
            raise RequestError(error.message, hint) from error
        raise


def _sample(numbers: NDArray[np.intp], most: int, seed: int) -> NDArray[np.intp]:
    """Some of the rows, ascending; all if there are no more than ``most``."""
    if len(numbers) <= most:
        return numbers
    return np.sort(np.random.default_rng(seed).choice(numbers, most, replace=False))


def _check_rows(layer: LayerRows, scan: RowScan) -> None:
    if scan.bad_rows:
        raise RequestError(
            f"{layer.key} has {row_count(scan.bad_rows)} with NaN or infinite values (the first is"
            f" row {scan.first_bad}), which have no place in a scatter.",
            "Find out where they come from: hookscope check MODEL --input INPUT",
        )
    if scan.constant:
        raise RequestError(
            f"All rows of {layer.key} are equal, so they have no directions of variance.",
            "Select another layer with --layer.",
        )


def _embedded(rows: Matrix, method: str, seed: int) -> tuple[Matrix, str]:
    """The points of another method, from coordinates along the first axes; and what it is."""
    # A seed may be larger than the 32 bits that these packages accept as a number.
    random: Any = np.random.RandomState(np.random.MT19937(seed))
    axes = f"first {rows.shape[1]} principal components, seed {seed}"
    if method == TSNE:
        with optional_package("sklearn", "probe", "t-SNE"):
            import sklearn
            from sklearn.manifold import TSNE as Method  # noqa: N811 - a name of many capitals
        perplexity = min(30.0, (len(rows) - 1) / 3)
        places = Method(perplexity=perplexity, random_state=random).fit_transform(rows)
        package = f"scikit-learn {sklearn.__version__}, perplexity {perplexity:.3g}"
        return np.asarray(places, np.float64), f"t-SNE ({package}, {axes})"
    with optional_package("umap", "umap", "UMAP"):
        import umap
    count = min(15, len(rows) - 1)
    # With fewer rows than this, its spectral start has too few eigenvectors.
    start = "spectral" if len(rows) > 2 * count else "random"
    reducer = umap.UMAP(n_neighbors=count, init=start, random_state=random, n_jobs=1)
    package = f"umap-learn {umap.__version__}, {count} neighbours"
    return np.asarray(reducer.fit_transform(rows), np.float64), f"UMAP ({package}, {axes})"


def _notes(
    layer: LayerRows,
    numbers: NDArray[np.intp],
    drawn: NDArray[np.intp],
    fitted: NDArray[np.intp],
    seed: int,
) -> list[str]:
    """Sentences on what was flattened or sampled."""
    notes, total = [], count_text(len(numbers))
    if layer.dims > 1:
        notes.append("The rows have several dimensions and were flattened.")
    if len(drawn) < len(numbers):
        notes.append(
            f"{count_text(len(drawn))} of {total} rows were chosen at random (seed {seed}) and are"
            " drawn; their neighbours are searched among all rows."
        )
    if len(fitted) < len(numbers):
        notes.append(
            f"The axes were computed from {count_text(len(fitted))} of {total} rows (seed {seed}),"
            f" because a row has {count_text(layer.width)} values."
        )
    return notes


def _inputs(features: Features, rows: NDArray[np.intp]) -> dict[int, tuple[str, str | None]]:
    """The name and the hash of the inputs of some rows."""
    wanted = set(rows.tolist())
    return {
        row: (str(entry.get("path", f"item {entry.get('item')}")), entry.get("sha256"))
        for row, entry in enumerate(features.inputs)
        if row in wanted
    }
