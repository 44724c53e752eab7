"""Rank the inputs of a features folder by the activation of units, without torch."""

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
from hookscope.specs.features_options import TopOptions
from hookscope.specs.public import public

if TYPE_CHECKING:
    from hookscope.file_analysis.top_inputs import TopInputs


@public
def top(
    features: str | os.PathLike[str],
    *,
    options: TopOptions,
    progress: Progress | None = None,
) -> TopInputs:
    """Find the inputs that excite each unit, channel or direction of a layer most and least.

    Rows are read once, in blocks; memory does not grow with their number. If a row has positions,
    as a map or tokens have, the activation of a channel is its largest value or its mean over them.
    For texts, the token with the largest value is named if rows are whole, or were reduced with
    ``max`` or ``topk:K:tokens``. Texts are read from their files, where ``input`` allows it.
    Quantiles of all activations are exact up to 128 MB of activations. Beyond, they come from a
    histogram of 65536 bins, made by a second pass.

    Args:
        features: a folder that ``extract`` wrote, or its address.
        progress: called with the number of rows read, and the total.

    Raises:
        RequestError: there is no such layer or unit, several layers match, or a direction does not
            fit.
        ResultsFileError: a file of the folder is missing or damaged.

    Example:
        >>> import hookscope
        >>> found = hookscope.top("sample_models/features", layer="fc", units=[3], count=1)
        >>> found.units[0].most[0].name
        'sample_models/digits/3.png'
    """
    from hookscope.file_analysis.top_inputs import rank_inputs
    from hookscope.inputs.text_formats import StoredTexts
    from hookscope.stores.features.features import Features

    folder = Features(features)
    texts = StoredTexts(folder.manifest["inputs"]["specs"], folder.places_of_inputs(options.input))
    return rank_inputs(folder, options, texts, progress)


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

OUTPUT = analysis_if_named(".json, .csv, or a sheet of images or texts (.png, .jpg, .svg, .pdf)")


@command(
    "top",
    options.features_argument(),
    options_of(TopOptions),
    OUTPUT.options,
    table_options,
    examples=EXAMPLES,
    main="layer units count output",
    topics="keys",
)
def top_command(ctx: click.Context, features: str, **values: Any) -> None:
    """Show the inputs that excite units most and least.

    Ranks the inputs of a features folder by the activation of each unit, channel or direction, with
    quantiles of all activations. In a text, brackets mark the token with the largest value. A sheet
    shows images, or texts, read from their files. Torch is not loaded.
    """
    run_on_features(ctx, top, (features,), values, OUTPUT, "Reading rows")
