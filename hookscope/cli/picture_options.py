"""The common options of the commands that draw: tensors, channels, the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import combine, flag, option
from hookscope.cli.console import Console
from hookscope.cli.param_types import Choice, FileName, ParsedValue
from hookscope.cli.recording_command import note_written_file
from hookscope.specs.choices import CHANNEL_ORDERS, COLOR_SCALES, DPI, MAX_DPI, MIN_DPI
from hookscope.specs.value_readers import read_indices

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.views.images.figures.drawing import Drawing

tensors = combine(
    click.argument(
        "file",
        metavar="FILE",
        type=FileName("file"),
        help="Result file, or weights.",
    ),
    click.argument(
        "keys",
        metavar="[KEY]...",
        nargs=-1,
        shell_complete=completion_values.keys,
        help="Layer, key or glob. A slice may follow: layer3.0/output[0,3].",
    ),
)


def channels(section: str) -> Callable[[Any], Any]:
    """Return the options that select channels."""
    return combine(
        option(
            "--channels",
            section=section,
            type=ParsedValue("list", read_indices),
            help="Channels to draw, such as 0,3,8-11.",
        ),
        option(
            "--by",
            section=section,
            default=CHANNEL_ORDERS[0],
            type=Choice(CHANNEL_ORDERS),
            help="First, strongest or random channels. Strength is the mean absolute value.",
        ),
        option(
            "--count",
            section=section,
            default=16,
            type=click.IntRange(min=1),
            metavar="N",
            help="Maximum number of channels.",
        ),
    )


def channel_details(section: str) -> Callable[[Any], Any]:
    """Return further options for the channels of a recorded tensor."""
    return combine(
        option(
            "--seed",
            section=section,
            shared_env="HOOKSCOPE_SEED",
            default=0,
            type=click.IntRange(min=0),
            metavar="N",
            help="Seed for --by random.",
        ),
        option(
            "--channel-dim",
            "dim",
            section=section,
            type=int,
            metavar="N",
            help="Channel dimension, if detected wrongly (-1: last).",
        ),
    )


def scale(section: str) -> Callable[[Any], Any]:
    """Return the option of the colour scale."""
    return option(
        "--scale",
        section=section,
        default=COLOR_SCALES[0],
        type=Choice(COLOR_SCALES),
        help="One colour scale for the grid, or for each panel.",
    )


appearance = combine(
    scale("Appearance"), flag("dark", section="Appearance", help="Use a dark background.")
)

resolution = option(
    "--dpi",
    section="Output",
    default=DPI,
    type=click.IntRange(MIN_DPI, MAX_DPI),
    metavar="N",
    help="Resolution in dots per inch.",
)

output = combine(
    resolution,
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Picture to write: .png, .jpg, .svg or .pdf. Default: NAME.COMMAND.png.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)


def resolve_picture_path(
    output: str | None, force: bool, name: str, command: str
) -> tuple[Path, bool]:
    """Return the image file to write, and whether it replaces one, after checking both."""
    from pathlib import Path

    from hookscope.files import output_path as outputs

    path = Path(output) if output else outputs.default_path(name, command, ".png")
    return path, outputs.check_output(path, force, suffix=outputs.picture_ending(path))


def write_picture(
    console: Console, drawing: Drawing, path: Path, replaces: bool, dpi: int, command: str
) -> None:
    """Write the image, and print what it shows."""
    console.step(f"Writing {path} ...")
    size = drawing.save(path, dpi)
    if console.json:
        from hookscope.views.view import make_document

        description = {"file": str(path), "kind": drawing.kind, "shows": drawing.shows}
        console.document(make_document(command, description))
    else:
        from hookscope.views.text.text_table import sentence

        for line in drawing.shows:
            console.result(sentence(line, console.text_options))
    note_written_file(console, path, size, replaces)
