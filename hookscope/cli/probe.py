"""``hookscope probe``: how well a linear model reads labels from each layer."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli.analysis_output import (
    features_output,
    folder_argument,
    layers,
    resolve_features_file,
    show_analysis,
)
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import Choice, ParsedValue
from hookscope.cli.run_context import show_logs
from hookscope.cli.table_options import table_options
from hookscope.specs.probe_options import PROBES
from hookscope.specs.value_readers import read_byte_count

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
SECTION = "Probe"

how = combine(
    option(
        "--labels",
        section=SECTION,
        default="label",
        metavar="COLUMN|FILE",
        help="Stored column, or CSV file with a label a row.",
    ),
    option(
        "--by",
        section=SECTION,
        type=Choice(PROBES),
        help="Kind of probe. Default: ridge for numbers that are not whole.",
    ),
    option(
        "--splits",
        section=SECTION,
        default=5,
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of random splits.",
    ),
    option(
        "--test",
        section=SECTION,
        default=0.25,
        type=float,
        metavar="SHARE",
        help="Share of rows to hold out.",
    ),
    option(
        "--l2",
        section=SECTION,
        default=1.0,
        type=float,
        metavar="X",
        help="Strength of the L2 penalty.",
    ),
    option(
        "--seed",
        section=SECTION,
        shared_env="HOOKSCOPE_SEED",
        default=0,
        type=click.IntRange(min=0),
        metavar="N",
        help="Seed of the first split.",
    ),
    option(
        "--memory",
        section=SECTION,
        default="2GB",
        type=ParsedValue("bytes", read_byte_count),
        help="Memory for the rows of a layer.",
    ),
)


@command(
    "probe",
    folder_argument(),
    how,
    layers,
    features_output(".json, .csv, or a picture (.png, .jpg, .svg, .pdf)"),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="labels layer by output",
    topics="keys",
)
def probe(
    ctx: click.Context, features: str, output: str | None, force: bool, dpi: int, **values: Any
) -> None:
    """Measure how well a linear model reads labels from each layer.

    Fits logistic regression to classes, or ridge regression to numbers, and scores it on rows that
    were held out: accuracy or R2. Needs scikit-learn. Torch is not loaded.
    """
    console: Console = ctx.obj
    from hookscope.files.output_path import ANALYSES
    from hookscope.specs.probe_options import ProbeOptions

    ProbeOptions(**values)  # for its checks, before a file is read
    file = resolve_features_file(output, force, ANALYSES, (features,))
    console.interrupt_message = "Interrupted; nothing was written."
    show_logs(console)
    with console.status("Fitting probes ..."), console.bar("Fitting") as advance:
        from hookscope.api.probe import probe as api_probe
        from hookscope.views.display import write_analysis

        result = api_probe(features, **values, progress=advance)
    size = 0 if file is None else write_analysis(result, file.path, dpi)
    show_analysis(console, result, file, size)
