"""What the commands that analyze features folders share: the layers, and one file of the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import combine, option
from hookscope.cli.options import force
from hookscope.cli.param_types import FileName
from hookscope.cli.picture_options import resolution
from hookscope.errors import RequestError

layers = option(
    "--layer",
    "-l",
    "layers",
    section="Layers",
    multiple=True,
    metavar="KEY",
    shell_complete=completion_values.layers,
    help="Layer, key or glob of either. Repeatable. Default: all.",
)


def folder_argument(name: str = "features", *, required: bool = True) -> Any:
    """Return the argument of a features folder."""
    return click.argument(
        name,
        metavar=name.upper() if required else f"[{name.upper()}]",
        required=required,
        type=FileName("folder"),
        help="Folder that 'hookscope extract' wrote, or its address."
        if required
        else "Another one, of the same inputs.",
    )


def analysis_output(endings: str) -> Any:
    """Return the options of the file; ``endings`` are listed in its help."""
    return combine(
        resolution,
        option(
            "--output",
            "-o",
            section="Output",
            type=FileName("file"),
            help=f"File to write: {endings}. Default: none.",
        ),
        force,
    )


def resolve_analysis_file(
    output: str | None, force: bool, endings: Sequence[str], folders: Sequence[str | None]
) -> tuple[Path, bool] | None:
    """Return the file to write and whether it replaces one, after checking both; None for none.

    Args:
        output: the path.
        force: replace a file that hookscope did not write.
        endings: the supported formats.
        folders: the features folders, in which no file is written.

    Raises:
        RequestError: the file cannot be written, or would be in one of the folders.
        EnvironmentFault: it is a picture, and matplotlib is not installed.
    """
    if output is None:
        return None
    from hookscope.specs import output_path as outputs

    path = Path(output)
    ending = outputs.known_ending(path, endings)
    if ending in outputs.PICTURE_MARKS:
        from hookscope.views.images import require_matplotlib

        with require_matplotlib():
            from hookscope.views.images.figures import canvas  # noqa: F401 - needed later
    for folder in folders:
        if folder is not None and path.parent.resolve() == Path(folder).resolve():
            raise RequestError(
                f"The output {path} would be among the files of {folder}.",
                "Set --output to a file in another folder.",
            )
    return path, outputs.check_output(path, force, suffix=ending)
