"""The common options of the commands that draw: tensors, channels, the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import combine, flag, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file
from hookscope.specs.choices import DPI, MAX_DPI, MIN_DPI
from hookscope.specs.plot_options import PlotOptions

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
    return _in_section(section, "channels", "by", "count")


def channel_details(section: str) -> Callable[[Any], Any]:
    """Return further options for the channels of a recorded tensor."""
    return _in_section(section, "seed", "dim")


def scale(section: str) -> Callable[[Any], Any]:
    """Return the option of the colour scale."""
    return _in_section(section, "scale")


def _in_section(section: str, *names: str) -> Callable[[Any], Any]:
    return options_of(PlotOptions, *names, **{name: {"section": section} for name in names})


appearance = options_of(PlotOptions, "scale", "dark")

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
        from hookscope.views.display import make_document

        description = {"file": str(path), "kind": drawing.kind, "shows": drawing.shows}
        console.document(make_document(command, description))
    else:
        from hookscope.views.text.text_table import sentence

        for line in drawing.shows:
            console.result(sentence(line, console.text_options))
    note_written_file(console, path, size, replaces)
