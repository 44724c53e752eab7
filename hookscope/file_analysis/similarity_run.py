"""Similarity of all pairs of layers of one or two features folders.

The rows are read in blocks. Products of features take memory for the widths of two layers; products
of rows, which are as good and smaller if there are fewer rows than features, for pairs of rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis import similarity_measures as measures
from hookscope.file_analysis.layer_rows import (
    LayerRows,
    Matrix,
    RowScan,
    RowStream,
    check_numbers,
    gram_matrix,
    row_count,
    row_counter,
    row_preparation,
    scan_layers,
    usable_rows,
)
from hookscope.files.progress_types import Progress
from hookscope.results.layer_similarity import (
    ComparedFolder,
    ComparedLayer,
    LayerSimilarity,
)
from hookscope.specs.features_options import (
    CKA,
    CKA_DEBIASED,
    CKA_RBF,
    CORRELATION,
    EUCLIDEAN,
    KNN,
    MIN_ROWS,
    PROCRUSTES,
    RSA,
    SPEARMAN,
    SVCCA,
    SimilarityOptions,
)
from hookscope.stores.features.features import Features

log = logging.getLogger("hookscope")

Pair = tuple[int, int]
PairValues = dict[Pair, float]
Means = Sequence[Matrix]  # of the features of each layer
_UNDEFINED = (
    "its similarities are not defined: the distances between its rows are all equal, or the"
    " debiased estimate for the layer with itself is not positive."
)


def compare_layers(
    a: Features,
    b: Features | None,
    options: SimilarityOptions,
    progress: Progress | None = None,
) -> LayerSimilarity:
    """Compare each layer of A with each of B, or with each other layer of A."""
    keys = _choose_layers(a, b, tuple(options.layers))
    numbers, notes = usable_rows(a, b, options.every)
    _check_row_count(len(numbers), a.folder, options)
    sides = [(a, keys[0])] if b is None else [(a, keys[0]), (b, keys[1])]
    layers = [LayerRows(key, features[key]) for features, chosen in sides for key in chosen]
    for layer in layers:
        check_numbers(layer)
    shift = 0 if b is None else len(keys[0])
    run = _Run(RowStream(layers, numbers), options, shift)
    values, problems = run.measure(progress)
    folders: list[ComparedFolder] = []
    for features, chosen in sides:
        start = shift if folders else 0
        compared = (
            ComparedLayer(key, layers[start + i].rows.shape[1:], problems[start + i])
            for i, key in enumerate(chosen)
        )
        model = str(features.manifest["model"]["spec"])
        folders.append(ComparedFolder(features.folder, model, tuple(compared)))
    notes += [f"{layers[i].key}: {text}" for i, text in enumerate(problems) if text]
    if flat := sum(layer.dims > 1 for layer in layers):
        notes.append(
            f"The rows of {flat} of {len(layers)} layers have several dimensions and were"
            " flattened: each position counts as a feature."
        )
    return LayerSimilarity(
        options.by,
        folders[0],
        folders[1] if b is not None else None,
        tuple(tuple(float(value) for value in row) for row in values),
        len(numbers),
        _chosen_options(options),
        tuple(notes),
    )


def _check_row_count(rows: int, folder: str, options: SimilarityOptions) -> None:
    if rows < MIN_ROWS:
        raise RequestError(
            f"{rows} rows of {folder} can be used, and a similarity needs at least {MIN_ROWS}.",
            "Extract more inputs, or leave out --every."
            if options.every > 1
            else "Extract more inputs.",
        )
    if options.by == KNN and options.neighbors >= rows:
        raise RequestError(
            f"Each of {rows} rows has {rows - 1} others, fewer than {options.neighbors}"
            " neighbours.",
            "Give a smaller number with --neighbors.",
        )


def _choose_layers(
    a: Features, b: Features | None, patterns: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The keys of A and of B that the patterns match; each must match in one of them."""
    if b is None or not patterns:
        return a.choose(patterns), [] if b is None else b.choose([])
    found: list[list[str]] = [[], []]
    for pattern in patterns:
        errors = []
        for features, keys in zip((a, b), found, strict=True):
            try:
                keys += features.choose([pattern])
            except RequestError as error:
                errors.append(error)
        if len(errors) == 2:
            raise errors[0]
    for features, keys in zip((a, b), found, strict=True):
        if not keys:
            raise RequestError(
                f"No pattern matches a layer in {features.folder}.",
                f"Add one: 'hookscope show {features.folder}' lists its layers.",
            )
    return list(dict.fromkeys(found[0])), list(dict.fromkeys(found[1]))


def _chosen_options(options: SimilarityOptions) -> dict[str, str | int]:
    chosen: dict[str, str | int] = {}
    if options.resolved_distance:
        chosen["distance"] = options.resolved_distance
    if options.by == RSA:
        chosen["correlation"] = options.correlation
    if options.by == KNN:
        chosen["neighbors"] = options.neighbors
    return chosen


@dataclass(frozen=True)
class _Run:
    """One comparison."""

    stream: RowStream
    options: SimilarityOptions
    shift: int

    def measure(self, progress: Progress | None) -> tuple[NDArray[np.float64], list[str]]:
        """Return the matrix, and for each layer why it has no similarities."""
        layers = self.stream.layers
        by_rows = self.options.measure.rows_squared or self._prefers_rows()
        self._check_memory()
        advance = row_counter(progress, self._passes(by_rows) * len(self.stream))
        counting = replace(self, stream=replace(self.stream, advance=advance))
        distance = self.options.resolved_distance
        scans = scan_layers(counting.stream, distance)
        problems = [_problem(scan, distance) for scan in scans]
        good = [i for i, text in enumerate(problems) if not text]
        means = [scan.mean for scan in scans]
        values = counting._values(means, good, by_rows)
        for i in good:
            if all(math.isnan(value) for pair, value in values.items() if i in pair):
                problems[i] = _UNDEFINED
        lowest = self.options.measure.lowest
        values = {pair: float(np.clip(v, lowest, 1)) for pair, v in values.items()}  # rounding
        rows = self.shift or len(layers)
        first = self.shift
        matrix = np.full((rows, len(layers) - first), math.nan)
        for i in range(rows):
            for j in range(first, len(layers)):
                matrix[i, j - first] = values.get((min(i, j), max(i, j)), math.nan)
        return matrix, problems

    def _pairs(self, good: Sequence[int]) -> list[Pair]:
        """The pairs whose similarity is asked for, the smaller number first."""
        if not self.shift:
            return [(i, j) for i in good for j in good if i <= j]
        return [(i, j) for i in good if i < self.shift for j in good if j >= self.shift]

    def _prefers_rows(self) -> bool:
        """Whether products of rows are smaller than those of features, and fit."""
        count, layers = len(self.stream), self.stream.layers
        fits = 8 * count**2 * len(layers) <= self.options.memory
        return fits and count <= max(layer.width for layer in layers)

    def _check_memory(self) -> None:
        """Say what a measure that needs pairs of rows takes, before it starts."""
        if not self.options.measure.rows_squared:
            return
        count, layers = len(self.stream), len(self.stream.layers)
        kept = 4 * count * (count - 1) if self.options.by == RSA else 8 * count**2
        ranks = 3 * kept if self.options.correlation == SPEARMAN else 0
        size = kept * layers + 2 * 8 * count**2 + ranks
        text = (
            f"{self.options.by} keeps a number for each pair of {count:,} rows in"
            f" {layers} layers: {size:,} bytes"
        )
        if size > self.options.memory:
            raise RequestError(
                f"{text}, and --memory is {self.options.memory:,}.",
                "Select fewer layers, use every N-th row with --every, or increase --memory.",
            )
        log.info("%s of memory", text)

    def _passes(self, by_rows: bool) -> int:
        """How often all rows are read, one layer counting as much as all together."""
        layers = len(self.stream.layers)
        if by_rows or self.options.by == KNN:
            return 1 + layers
        widths = [layer.width for layer in self.stream.layers]
        everything = list(range(layers))
        pairs = self._pairs(everything)
        if self.options.by in (CKA, CKA_DEBIASED):
            pairs = list(dict.fromkeys([*pairs, *((i, i) for i in everything)]))
        passes = 1 + len(measures.plan_tiles(pairs, widths, self.options.memory))
        if self.options.by == SVCCA:
            diagonal = [(i, i) for i in everything]
            return passes + len(measures.plan_tiles(diagonal, widths, self.options.memory))
        return passes + (self.options.by != CKA)

    def _values(self, means: Means, good: list[int], by_rows: bool) -> PairValues:
        pairs = self._pairs(good)
        by = self.options.by
        if by == RSA:
            return self._rsa(means, good, pairs)
        if by == KNN:
            return self._neighbors(means, good, pairs)
        if by in (CKA, CKA_DEBIASED, CKA_RBF):
            return self._cka(means, good, pairs, by_rows)
        if by_rows:
            return self._subspaces_of_rows(means, good, pairs)
        if by == PROCRUSTES:
            return self._procrustes(means, good, pairs)
        return self._svcca(means, good, pairs)

    def _cka(self, means: Means, good: list[int], pairs: list[Pair], by_rows: bool) -> PairValues:
        own = [(i, i) for i in good]
        needed = list(dict.fromkeys([*pairs, *own]))
        debiased = self.options.by == CKA_DEBIASED
        if by_rows:
            grams = self._grams(means, good)
            if self.options.by == CKA_RBF:
                grams = {
                    i: measures.centred_kernel(measures.rbf_kernel(gram))
                    for i, gram in grams.items()
                }
            sums = {(i, j): measures.alignment_of_grams(grams[i], grams[j]) for i, j in needed}
        else:
            lengths: dict[int, float] = dict.fromkeys(good, 0.0)
            row_products: dict[Pair, float] = dict.fromkeys(needed, 0.0)
            if debiased:
                lengths, row_products = measures.squared_lengths(self.stream, means, good)
            products = measures.squared_products(self.stream, means, needed, self.options.memory)
            sums = {
                (i, j): measures.Alignment(
                    products[i, j], row_products[i, j], (lengths[i], lengths[j])
                )
                for i, j in needed
            }
        count = len(self.stream)
        hsic = {pair: sums[pair].hsic(count, debiased=debiased) for pair in needed}
        return {(i, j): measures.cka(hsic[i, j], hsic[i, i], hsic[j, j]) for i, j in pairs}

    def _grams(self, means: Means, good: list[int]) -> dict[int, Matrix]:
        """The products of rows with centred features, of each layer."""
        memory = self.options.memory
        return {
            i: gram_matrix(self.stream, i, row_preparation(EUCLIDEAN, means[i]), memory)
            for i in good
        }

    def _rsa(self, means: Means, good: list[int], pairs: list[Pair]) -> PairValues:
        distance = self.options.resolved_distance or ""
        distances = {}
        for i in good:
            prepare = row_preparation(distance, means[i])
            gram = gram_matrix(self.stream, i, prepare, self.options.memory)
            values = measures.pair_distances(gram, distance)
            if self.options.correlation == SPEARMAN and not np.isnan(values).any():
                values = measures.average_ranks(values)
            distances[i] = measures.standardized(values)
        return {(i, j): float(np.dot(distances[i], distances[j])) for i, j in pairs}

    def _neighbors(self, means: Means, good: list[int], pairs: list[Pair]) -> PairValues:
        distance, count = self.options.resolved_distance or "", self.options.neighbors
        prepare = {i: row_preparation(distance, means[i]) for i in good}
        near = {
            i: measures.nearest_rows(
                self.stream,
                i,
                self.stream.numbers,
                prepare[i],
                count,
                self.options.memory,
                distance,
            )[0]
            for i in good
        }
        return {(i, j): measures.shared_share(near[i], near[j]) for i, j in pairs}

    def _subspaces_of_rows(self, means: Means, good: list[int], pairs: list[Pair]) -> PairValues:
        grams = self._grams(means, good)
        spectra = {i: measures.spectrum_of(gram) for i, gram in grams.items()}
        if self.options.by == SVCCA:
            leading = {i: spectrum.leading() for i, spectrum in spectra.items()}
            return {(i, j): measures.svcca_of_rows(leading[i], leading[j]) for i, j in pairs}
        squares = {i: float(np.trace(gram)) for i, gram in grams.items()}
        return {
            (i, j): measures.procrustes(
                measures.nuclear_norm_of_rows(spectra[i], spectra[j]), (squares[i], squares[j])
            )
            for i, j in pairs
        }

    def _procrustes(self, means: Means, good: list[int], pairs: list[Pair]) -> PairValues:
        lengths, _ = measures.squared_lengths(self.stream, means, good)
        products = measures.whole_products(self.stream, means, pairs, self.options.memory)
        return {
            (i, j): measures.procrustes(measures.nuclear_norm(product), (lengths[i], lengths[j]))
            for (i, j), product in products
        }

    def _svcca(self, means: Means, good: list[int], pairs: list[Pair]) -> PairValues:
        own = [(i, i) for i in good]
        leading = {
            i: measures.spectrum_of(product).leading()
            for (i, _), product in measures.whole_products(
                self.stream, means, own, self.options.memory
            )
        }
        products = measures.whole_products(self.stream, means, pairs, self.options.memory)
        return {
            (i, j): measures.svcca_of_features(leading[i], leading[j], product)
            for (i, j), product in products
        }


def _problem(scan: RowScan, distance: str | None) -> str:
    """Why the similarities of a layer are not defined; empty if they are."""
    if scan.bad_rows:
        return (
            f"it has {row_count(scan.bad_rows)} with NaN or infinite values (the first is row"
            f" {scan.first_bad}), so its similarities are not defined."
        )
    if scan.constant:
        return "all rows are equal, so its similarities are 0/0 and not defined."
    if scan.short_rows:
        what = "equal values" if distance == CORRELATION else "zeros"
        return (
            f"it has {row_count(scan.short_rows)} with only {what}, whose {distance} distance to"
            " others is 0/0. Its similarities are not defined; --distance euclidean has no such"
            " rows."
        )
    return ""
