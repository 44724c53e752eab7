"""Compare the layers of one or two features folders, without torch."""

from __future__ import annotations

import os

from hookscope.api.public import public
from hookscope.file_analysis.similarity.similarity_run import compare_layers
from hookscope.files.progress import Progress
from hookscope.results.layer_similarity import LayerSimilarity
from hookscope.specs.features_options import SimilarityOptions
from hookscope.stores.features.features import Features


@public
def similar(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    options: SimilarityOptions,
    progress: Progress | None = None,
) -> LayerSimilarity:
    """Compare all pairs of layers of one features folder, or each layer of A with each of B.

    The rows are read in blocks, in float64. A row of several dimensions is flattened. Memory does
    not grow with the rows, except for ``rsa`` and ``cka-rbf``, which need each pair of rows, and
    say so. See docs/feature-sets.md for the formulas and their sources.

    Args:
        a: a folder that ``extract`` wrote, or its address.
        b: another one of the same inputs in the same order, which their hashes must show.
        progress: called with the number of rows read and the total, over all passes.

    Returns:
        The matrix of similarities; NaN where one is not defined, with a note that says why.

    Raises:
        RequestError: the folders are of different inputs, a layer matches nothing, there are fewer
            than 4 rows, or the measure needs more than ``memory``.
        ResultsFileError: a file of a folder is missing or damaged.

    Example:
        >>> import hookscope
        >>> found = hookscope.similar("sample_models/features", by="cka-debiased")
        >>> round(found.value("pool", "fc"), 3)
        0.843
    """
    other = None if b is None else Features(b)
    return compare_layers(Features(a), other, options, progress)
