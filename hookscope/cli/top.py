"""``hookscope top``: the inputs that excite the units of a layer most and least."""

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
from hookscope.specs.features_options import TopOptions

EXAMPLES = (
    Example(
        "hookscope top sample_models/features/ --layer fc --units 0-9 --count 3",
        "The inputs with the largest and smallest scores of each class.",
    ),
    Example(
        "hookscope top sample_models/features --layer pool --units 0-3 -o top.png",
        "Channels of a map, as a sheet of pictures.",
    ),
)


@command(
    "top",
    folder_argument(),
    options_of(TopOptions),
    features_output(".json, .csv, or a sheet of images or texts (.png, .jpg, .svg, .pdf)"),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer units count output",
    topics="keys",
)
def top(
    ctx: click.Context, features: str, output: str | None, force: bool, dpi: int, **values: Any
) -> None:
    """Show the inputs that excite units most and least.

    Ranks the inputs of a features folder by the activation of each unit, channel or direction, with
    quantiles of all activations. In a text, brackets mark the token with the largest value. A sheet
    shows images, or texts, read from their files. Torch is not loaded.
    """
    console: Console = ctx.obj
    from hookscope.files.output_path import ANALYSES

    TopOptions(**values)  # for its checks, before a file is read
    file = resolve_features_file(output, force, ANALYSES, (features,))
    console.interrupt_message = "Interrupted; nothing was written."
    show_logs(console)
    with console.bar("Reading rows") as advance:
        from hookscope.api.top import top as api_top
        from hookscope.views.display import write_analysis

        result = api_top(features, **values, progress=advance)
    size = 0 if file is None else write_analysis(result, file.path, dpi)
    show_analysis(console, result, file, size)
