"""``hookscope probe``: how well a linear model reads labels from each layer."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli.analysis_output import (
    features_output,
    folder_argument,
    resolve_features_file,
    show_analysis,
)
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import show_logs
from hookscope.cli.table_options import table_options
from hookscope.specs.features_options import ProbeOptions

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


@command(
    "probe",
    folder_argument(),
    options_of(ProbeOptions, "labels", "by", "splits", "test", "l2", "seed", "memory", "layers"),
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
