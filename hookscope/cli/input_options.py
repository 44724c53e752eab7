"""The options of the input: files, generated tensors, its shape, and preprocessing of images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from hookscope.cli.commands import combine, option
from hookscope.cli.param_types import (
    InputName,
    ParsedValue,
    read_divisors,
    read_numbers,
    read_shape,
    read_size,
)

if TYPE_CHECKING:
    from hookscope.specs.input_spec import InputSpec

_CHECKED_FILES = 64  # of an input; of a million files a few show whether they are images


def check_inputs(specs: Iterable[str]) -> list[InputSpec]:
    """Parse the specs of ``--input``, one for each file, and check the types of the first."""
    from hookscope.specs.input_spec import check_file_type, parse_inputs

    parsed = parse_inputs(specs)
    for input_spec in parsed[:_CHECKED_FILES]:
        check_file_type(input_spec)
    return parsed


def _one_batch(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[InputSpec] | None:
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.cli.run_context import show_logs
    from hookscope.errors import InputError
    from hookscope.specs.input_list import is_listing

    if listing := next(filter(is_listing, value), None):
        raise InputError(
            f"{listing!r} lists many inputs, and is for 'hookscope extract'.",
            "Use that command, or name the inputs one by one.",
        )
    show_logs(ctx.obj)  # prints what was skipped in folders
    return check_inputs(value)


shape = option(
    "--shape",
    section="Input",
    type=ParsedValue("shape", read_shape),
    help="Shape of the input, such as 1x3x224x224, where no --input sets it; images are resized to"
    " its last two lengths.",
)

input = option(
    "--input",
    "-i",
    section="Input",
    multiple=True,
    type=InputName("word"),
    callback=_one_batch,
    help="An image, a folder or a glob of them, - for standard input; a .npy, .npz,"
    " .safetensors, .pt, .csv, .json, .txt, .wav or video file; random:SHAPE,"
    " ints:SHAPE:0-1000, text:WORDS; or FILE.py:FUNCTION. NAME=WORD says which argument it is."
    " Several make a batch; seeded noise if not given.",
)

images = combine(
    option(
        "--preprocess",
        section="Input",
        type=click.Choice(["imagenet", "none"]),
        help="How an image becomes a tensor; the weights' own recipe if not given.",
    ),
    option(
        "--size",
        section="Input",
        type=ParsedValue("size", read_size),
        help="Side of the image in pixels, or HEIGHTxWIDTH, in place of the recipe's.",
    ),
    option(
        "--mean",
        section="Input",
        type=ParsedValue("numbers", read_numbers),
        help="Subtracted from each channel (0 to 1), in place of the recipe's.",
    ),
    option(
        "--std",
        section="Input",
        type=ParsedValue("numbers", read_divisors),
        help="Divides each channel, in place of the recipe's.",
    ),
)

inputs = combine(input, shape, images)
