"""Compare the layers of one or two features folders, without torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import analysis_if_named
from hookscope.cli.runner import run_on_features
from hookscope.files.output_path import PAGE
from hookscope.files.progress_types import Progress
from hookscope.specs.features_options import SimilarityOptions
from hookscope.specs.public import public

if TYPE_CHECKING:
    from hookscope.results.layer_similarity import LayerSimilarity


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
    from hookscope.file_analysis.similarity_run import compare_layers
    from hookscope.stores.features.features import Features

    other = None if b is None else Features(b)
    return compare_layers(Features(a), other, options, progress)


EXAMPLES = (
    Example(
        "hookscope similar sample_models/features/ --by cka-debiased",
        "Each layer of a folder with each other.",
    ),
    Example(
        "hookscope similar sample_models/features/ sample_models/features/ --by rsa"
        " --distance euclidean --correlation spearman",
        "The layers of two folders, which may be of two models.",
    ),
    Example("hookscope similar sample_models/features/ -o similar.png", "The matrix as a picture."),
)

OUTPUT = analysis_if_named(".json, .csv, .html, or a picture (.png, .jpg, .svg, .pdf)", PAGE)


@command(
    "similar",
    options.features_argument("a"),
    options.features_argument("b", required=False),
    options_of(
        SimilarityOptions,
        "by",
        "distance",
        "correlation",
        "neighbors",
        "every",
        "memory",
        "layers",
    ),
    OUTPUT.options,
    table_options,
    examples=EXAMPLES,
    main="by layer distance output",
    topics="keys",
)
def similar_command(ctx: click.Context, a: str, b: str | None, **values: Any) -> None:
    """Compare the layers of features folders: CKA, RSA, ...

    Compares all pairs of layers of one folder, or each layer of A with each of B. Both must be of
    the same inputs, which their hashes must show. 1 means the same up to what the measure ignores,
    such as rotations. Torch is not loaded.
    """
    run_on_features(ctx, similar, (a, b), values, OUTPUT, "Reading rows")
