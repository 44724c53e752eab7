"""The options of the input: files, generated tensors, its shape, and preprocessing of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import (
    Choice,
    FileName,
    InputName,
    ParsedValue,
    read_divisors,
    read_numbers,
    read_shape,
    read_size,
)

if TYPE_CHECKING:
    from hookscope.specs.input_spec import InputSpec

_CHECKED_FILES = 64  # of a folder; a few show whether they are what their names say


def _one_batch(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[InputSpec] | None:
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.cli.run_context import show_logs
    from hookscope.errors import InputError
    from hookscope.files.text_sources import needs_dataset
    from hookscope.specs.input_spec import check_file_type, parse_inputs

    if listing := next(filter(needs_dataset, value), None):
        raise InputError(
            f"{listing!r} lists many inputs, which only 'hookscope extract' reads.",
            "Use that command, or repeat --input for each.",
        )
    show_logs(ctx.obj)  # prints what was skipped in folders
    parsed = parse_inputs(value)
    for input_spec in parsed[:_CHECKED_FILES]:
        check_file_type(input_spec)
    return parsed


shape = option(
    "--shape",
    section="Input",
    type=ParsedValue("shape", read_shape),
    help="Input shape, such as 1x3x224x224. With images, sets their size.",
)

input = option(
    "--input",
    "-i",
    section="Input",
    multiple=True,
    type=InputName("spec"),
    callback=_one_batch,
    help="Image, folder, array, text:WORDS or random:SHAPE. Repeatable. Default: noise.",
)

images = combine(
    option(
        "--preprocess",
        section="Input",
        type=Choice(["imagenet", "none"]),
        help="Image preprocessing. Default: that of the weights.",
    ),
    option(
        "--size",
        section="Input",
        type=ParsedValue("size", read_size),
        help="Image size in pixels, such as 224 or 224x320.",
    ),
    option(
        "--mean",
        section="Input",
        type=ParsedValue("numbers", read_numbers),
        help="Per-channel mean to subtract, on a scale of 0 to 1.",
    ),
    option(
        "--std",
        section="Input",
        type=ParsedValue("numbers", read_divisors),
        help="Per-channel standard deviation to divide by.",
    ),
)

inputs = combine(input, shape, images)

tokenizer = option(
    "--tokenizer",
    section="Input",
    type=FileName("path"),
    help="Tokenizer for texts: tokenizer.json or a folder. Default: the model's.",
)

texts = combine(
    tokenizer,
    flag("chat", section="Input", help="Put texts in the tokenizer's chat template."),
)
