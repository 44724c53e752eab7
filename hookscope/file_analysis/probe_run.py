"""Linear probes: a linear model is fitted to the rows of each layer, and scored on other rows.

Alain, Bengio: "Understanding intermediate layers using linear classifier probes" (2016). Features
are standardized with the mean and the deviation of the training rows. scikit-learn fits and scores:
``LogisticRegression`` (L2 penalty, lbfgs) by accuracy, ``Ridge`` by R^2.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, cause
from hookscope.file_analysis.layer_rows import LayerRows, Matrix, check_numbers, row_count
from hookscope.files.optional_packages import optional_package
from hookscope.files.progress_types import Progress
from hookscope.results.layer_probes import LayerProbes, ProbedLayer, ProbeSplit
from hookscope.specs.features_options import LOGISTIC, RIDGE, ProbeOptions
from hookscope.stores.features.features import Features
from hookscope.version import __version__

log = logging.getLogger("hookscope")
ITERATIONS = 1000  # of lbfgs, at most
_COPIES = 4  # of a layer's rows in memory: as read, split, and standardized


@dataclass(frozen=True)
class RowLabels:
    """Rows with their labels."""

    rows: NDArray[np.intp]
    values: NDArray[Any]
    method: str
    notes: tuple[str, ...]

    @property
    def classes(self) -> dict[str, int]:
        """The number of rows of each class, in order of the names; empty for numbers."""
        if self.method == RIDGE:
            return {}
        return dict(sorted(Counter(self.values.tolist()).items()))


def read_labels(features: Features, source: str, by: str | None) -> RowLabels:
    """Return the labels of the rows of a folder."""
    in_file = source not in features.columns and (
        os.path.isfile(source) or source.lower().endswith(".csv")
    )
    labels = _labels_in_file(source, features.rows) if in_file else features.column(source)
    skipped = set(features.inputs.skipped)
    rows = [i for i, label in enumerate(labels) if label not in (None, "") and i not in skipped]
    notes = []
    if skipped:
        notes.append(f"Left out because their input was skipped: {row_count(len(skipped))}.")
    if missing := features.rows - len(rows) - len(skipped):
        notes.append(f"Left out because they have no label: {row_count(missing)}.")
    if not rows:
        raise RequestError(
            f"No row of {features.folder} has a label in {source}.", "Name others with --labels."
        )
    values = [labels[i] for i in rows]
    numbers = _as_numbers(values)
    if by is None:
        whole = numbers is None or all(float(number).is_integer() for number in numbers)
        by = LOGISTIC if whole else RIDGE
    if by == RIDGE:
        if numbers is None:
            odd = next(value for value in values if _as_numbers([value]) is None)
            raise RequestError(
                f"The label {odd!r} is not a finite number, as ridge regression needs.",
                "Use --by logistic for classes.",
            )
        targets: NDArray[Any] = np.array(numbers)
    else:
        targets = np.array([str(value) for value in values])
    if len(set(targets.tolist())) < 2:
        raise RequestError(
            f"All {len(rows)} labels are {values[0]!r}, and a probe needs at least two different"
            " ones.",
            "Name other labels with --labels.",
        )
    return RowLabels(np.array(rows, np.intp), targets, by, tuple(notes))


def _as_numbers(values: Sequence[Any]) -> list[float] | None:
    """The labels as finite numbers; None if one is not."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _labels_in_file(path: str, rows: int) -> list[str]:
    """The labels in a file: one a line, with or without a first line that is their name."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file, strict=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(
            f"The labels in {path} cannot be read: {cause(error)}.",
            "Give a column of the folder, or a CSV file with one label in each line.",
        ) from error
    wide = next((number for number, line in enumerate(lines, 1) if len(line) > 1), None)
    if wide:
        raise RequestError(
            f"Line {wide} of {path} has {len(lines[wide - 1])} cells.",
            "Write one label in each line, in the order of the rows.",
        )
    if len(lines) not in (rows, rows + 1):
        raise RequestError(
            f"{path} has {len(lines)} labels, and the folder has {rows} rows.",
            "Write one label in each line, in the order of the rows.",
        )
    return [line[0].strip() for line in lines[len(lines) - rows :]]


def probe_layers(
    features: Features, options: ProbeOptions, progress: Progress | None = None
) -> LayerProbes:
    """Fit a probe to each layer, for each split."""
    with optional_package("sklearn", "probe", "Fitting probes"):
        import sklearn
    layers = [LayerRows(key, features[key]) for key in features.choose(options.layers)]
    labels = read_labels(features, options.labels, options.by)
    for layer in layers:
        check_numbers(layer)
        _check_memory(layer, len(labels.rows), options.memory)
    tests = [_test_positions(labels, options.test, options.seed + n) for n in range(options.splits)]
    splits = tuple(_split(labels, test, options.seed + n) for n, test in enumerate(tests))
    total, done = len(layers) * len(tests), 0
    probed = []
    for layer in layers:
        probed.append(_probed(layer, labels, tests, options))
        done += len(tests)
        if progress:
            progress(done, total)
    notes = [*labels.notes, *(f"{one.key}: {one.problem}" for one in probed if one.problem)]
    versions = {
        "hookscope": __version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
    return LayerProbes(
        features.folder,
        str(features.manifest["model"]["spec"]),
        options.labels,
        labels.method,
        labels.classes,
        tuple(probed),
        splits,
        options.l2,
        tuple(notes),
        versions,
    )


def _check_memory(layer: LayerRows, rows: int, memory: int) -> None:
    size = _COPIES * 8 * rows * layer.width
    if size > memory:
        raise RequestError(
            f"A probe of {layer.key} needs about {size:,} bytes ({rows:,} rows of {layer.width:,}"
            f" values, {_COPIES} times), and --memory is {memory:,}.",
            "Extract with --reduce mean, select other layers, or increase --memory.",
        )


def _test_positions(labels: RowLabels, share: float, seed: int) -> NDArray[np.intp]:
    """The positions among the labelled rows that a split holds out, ascending."""
    from sklearn.model_selection import train_test_split

    count, classes = len(labels.rows), labels.classes
    held = math.ceil(count * share)
    if classes:
        rare = min(classes, key=lambda name: classes[name])
        if classes[rare] < 2:
            raise RequestError(
                f"The class {rare!r} has 1 row, and each needs at least 2: one to fit and one to"
                " score.",
                "Extract more inputs of it, or leave its label empty.",
            )
        if min(held, count - held) < len(classes):
            raise RequestError(
                f"{count} rows of {len(classes)} classes cannot be split into {count - held} for"
                f" fitting and {held} for scoring with each class in both.",
                "Extract more inputs, or change the share with --test.",
            )
    elif min(held, count - held) < 2:
        raise RequestError(f"{count} rows are too few for a probe.", "Extract more inputs.")
    stratify = labels.values if classes else None
    _, test = train_test_split(
        np.arange(count), test_size=share, random_state=seed, stratify=stratify
    )
    return np.sort(test)


def _split(labels: RowLabels, test: NDArray[np.intp], seed: int) -> ProbeSplit:
    train = np.setdiff1d(np.arange(len(labels.rows)), test)
    fitted, held = labels.values[train], labels.values[test]
    if labels.method == LOGISTIC:
        names, counts = np.unique(fitted, return_counts=True)
        baseline = float(np.mean(held == names[np.argmax(counts)]))
    else:
        spread = float(np.sum((held - held.mean()) ** 2))
        error = float(np.sum((held - fitted.mean()) ** 2))
        baseline = 1 - error / spread if spread else math.nan
    digest = hashlib.sha256(labels.rows[test].astype("<i8").tobytes()).hexdigest()
    return ProbeSplit(seed, len(train), len(test), digest, baseline)


def _probed(
    layer: LayerRows, labels: RowLabels, tests: list[NDArray[np.intp]], options: ProbeOptions
) -> ProbedLayer:
    shape = layer.rows.shape[1:]
    values = layer.matrix(labels.rows)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        text = (
            f"not probed: it has {row_count(int(np.sum(~finite)))} with NaN or infinite values"
            f" (the first is row {int(labels.rows[np.argmin(finite)])})."
        )
        return ProbedLayer(layer.key, shape, (), (), text)
    scores = [_fit(values, labels, test, options) for test in tests]
    slow = sum(not converged for _, _, converged in scores)
    problems = []
    if slow:
        problems.append(
            f"{slow} of {len(tests)} fits did not converge in {ITERATIONS} steps; a larger --l2"
            " helps."
        )
    if (values == values[0]).all():
        problems.append("all rows are equal, so its score is that of no features.")
    return ProbedLayer(
        layer.key,
        shape,
        tuple(test for test, _, _ in scores),
        tuple(train for _, train, _ in scores),
        " ".join(problems),
    )


def _fit(
    values: Matrix, labels: RowLabels, test: NDArray[np.intp], options: ProbeOptions
) -> tuple[float, float, bool]:
    """The score on held-out rows, that on training rows, and whether the fit converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    held = np.zeros(len(values), bool)
    held[test] = True
    pipeline = make_pipeline(StandardScaler(), _linear_model(labels.method, options.l2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline.fit(values[~held], labels.values[~held])
    converged = not any(issubclass(one.category, ConvergenceWarning) for one in caught)
    return (
        float(pipeline.score(values[held], labels.values[held])),
        float(pipeline.score(values[~held], labels.values[~held])),
        converged,
    )


def _linear_model(method: str, l2: float) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    if method == LOGISTIC:
        return LogisticRegression(C=1 / l2, max_iter=ITERATIONS)
    return Ridge(alpha=l2)
