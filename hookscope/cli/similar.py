"""``hookscope similar``: how similar the layers of features folders are."""

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
from hookscope.specs.features_options import SimilarityOptions

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


@command(
    "similar",
    folder_argument("a"),
    folder_argument("b", required=False),
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
    features_output(".json, .csv, .html, or a picture (.png, .jpg, .svg, .pdf)"),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="by layer distance output",
    topics="keys",
)
def similar(
    ctx: click.Context,
    a: str,
    b: str | None,
    output: str | None,
    force: bool,
    dpi: int,
    **values: Any,
) -> None:
    """Compare the layers of features folders: CKA, RSA, ...

    Compares all pairs of layers of one folder, or each layer of A with each of B. Both must be of
    the same inputs, which their hashes must show. 1 means the same up to what the measure ignores,
    such as rotations. Torch is not loaded.
    """
    console: Console = ctx.obj
    from hookscope.files.output_path import ANALYSES, PAGE

    SimilarityOptions(**values)  # for its checks, before a file is read
    file = resolve_features_file(output, force, (*ANALYSES, PAGE), (a, b))
    console.interrupt_message = "Interrupted; nothing was written."
    show_logs(console)
    with console.bar("Reading rows") as advance:
        from hookscope.api.similar import similar as api_similar
        from hookscope.views.display import write_analysis

        result = api_similar(a, b, **values, progress=advance)
    size = 0 if file is None else write_analysis(result, file.path, dpi)
    show_analysis(console, result, file, size)
