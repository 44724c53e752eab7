"""Fit linear probes to the layers of a features folder, without torch."""

from __future__ import annotations

import os

from hookscope.api.public import public
from hookscope.file_analysis.probe_run import probe_layers
from hookscope.files.progress import Progress
from hookscope.results.layer_probes import LayerProbes
from hookscope.specs.features_options import ProbeOptions
from hookscope.stores.features.features import Features


@public
def probe(
    features: str | os.PathLike[str],
    *,
    options: ProbeOptions,
    progress: Progress | None = None,
) -> LayerProbes:
    r"""Measure how well a linear model reads labels from each layer, on rows that were held out.

    Each row is flattened and standardized with the mean and deviation of the training rows.
    scikit-learn splits, fits and scores, one layer in memory at a time. Classes have the same
    shares in both parts of a split.

    Args:
        features: a folder that ``extract`` wrote, or its address.
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
    return probe_layers(Features(features), options, progress)
