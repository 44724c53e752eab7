"""Fit linear probes to the layers of a features folder, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hookscope.file_analysis.probe_run import probe_layers
from hookscope.files.progress import Progress
from hookscope.results.layer_probes import LayerProbes
from hookscope.specs.probe_options import ProbeOptions
from hookscope.stores.features.features import Features


def probe(
    features: str | os.PathLike[str],
    *,
    labels: str = "label",
    layers: str | Iterable[str] = (),
    by: str | None = None,
    splits: int = 5,
    test: float = 0.25,
    l2: float = 1.0,
    seed: int = 0,
    memory: int = 2 * 10**9,
    progress: Progress | None = None,
) -> LayerProbes:
    r"""Measure how well a linear model reads labels from each layer, on rows that were held out.

    Each row is flattened and standardized with the mean and deviation of the training rows.
    scikit-learn splits, fits and scores, one layer in memory at a time. Classes have the same
    shares in both parts of a split.

    Args:
        features: a folder that ``extract`` wrote, or its address.
        labels: a column that is stored beside the rows (see docs/datasets.md), or a CSV file with a
            label in each line, in the order of the rows.
        layers: layers, keys or globs of either; none means all.
        by: ``logistic`` (accuracy) or ``ridge`` (R^2). None: ridge if labels are numbers that are
            not all whole.
        splits: number of random splits; their seeds are ``seed``, ``seed + 1``, ...
        test: share of the rows that is held out.
        l2: strength of the penalty: alpha of ridge, 1 / C of logistic regression.
        seed: of the first split.
        memory: bytes for the rows of one layer.
        progress: called with the number of fits done, and the total.

    Returns:
        Scores of each layer and split, and those without features. A layer with NaN has none, and
        a note.

    Raises:
        RequestError: there are no such labels, only one class, or too few rows of a class; or the
            rows of a layer take more than ``memory``.
        EnvironmentFault: scikit-learn is not installed.
        ResultsFileError: a file of the folder is missing or damaged.

    Example:
        >>> import hookscope, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "odd.csv")
        ...     _ = file.write_text("odd\n" + "\n".join("01" * 5))
        ...     found = hookscope.probe("sample_models/features", labels=str(file), test=0.4)
        >>> found.classes, found.splits[0].test, len(found.layer("fc").scores)
        ({'0': 5, '1': 5}, 4, 5)
    """
    options = ProbeOptions(labels, layers, by, splits, test, l2, seed, memory)
    return probe_layers(Features(features), options, progress)
