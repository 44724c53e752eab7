"""Fit linear probes to the layers of a features folder, without torch."""

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
from hookscope.files.progress_types import Progress
from hookscope.specs.features_options import ProbeOptions
from hookscope.specs.public import public

if TYPE_CHECKING:
    from hookscope.results.layer_probes import LayerProbes


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
    from hookscope.file_analysis.probe_run import probe_layers
    from hookscope.stores.features.features import Features

    return probe_layers(Features(features), options, progress)


EXAMPLES = (
    Example(
        "hookscope probe sample_models/features --labels sample_models/odd.csv",
        "How well a linear model reads the labels of a file from each layer.",
    ),
    Example(
        "hookscope probe sample_models/features --labels sample_models/odd.csv --l2 1",
        "The same with another penalty.",
    ),
    Example(
        "hookscope probe sample_models/features/ --labels sample_models/odd.csv --test 0.4"
        " --splits 3 -o probe.png",
        "The same for fewer splits, as a curve over the layers.",
    ),
)

OUTPUT = analysis_if_named(".json, .csv, or a picture (.png, .jpg, .svg, .pdf)")


@command(
    "probe",
    options.features_argument(),
    options_of(ProbeOptions, "labels", "by", "splits", "test", "l2", "seed", "memory", "layers"),
    OUTPUT.options,
    table_options,
    examples=EXAMPLES,
    main="labels layer by output",
    also="test",
    topics="keys",
)
def probe_command(ctx: click.Context, features: str, **values: Any) -> None:
    """Measure how well a linear model reads labels from each layer.

    Fits logistic regression to classes, or ridge regression to numbers, and scores it on rows that
    were held out: accuracy or R2. Needs scikit-learn. Torch is not loaded.
    """
    run_on_features(ctx, probe, (features,), values, OUTPUT, "Fitting")
