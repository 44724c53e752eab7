"""What the commands of an analysis share: the argument of a folder, and one file of the result.

``lens``, ``sweep`` and ``attribute`` analyze a model and write a file by default. ``similar``,
``probe`` and ``top`` analyze features folders and write a file where one is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from hookscope.cli import options
from hookscope.cli.commands import combine, option
from hookscope.cli.console import Console
from hookscope.cli.param_types import FileName
from hookscope.cli.picture_options import resolution
from hookscope.cli.recording_command import note_written_file
from hookscope.errors import RequestError
from hookscope.specs.request import ModelRequest


class AnalysisFile(NamedTuple):
    """The file to write: a document, a table, a page or a picture, as its suffix says."""

    path: Path
    replaces: bool


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


def features_output(endings: str) -> Any:
    """Return the options of the file of an analysis of features; help lists the ``endings``."""
    return combine(resolution, _output_option(f"{endings}. Default: none."), options.force)


def model_output(command: str, name: str = "output") -> Any:
    """Return the options of the file of an analysis of a model, which is written by default."""
    endings = ".json, .csv, .html, or a picture (.png, .jpg, .svg, .pdf)"
    return combine(
        resolution,
        _output_option(f"{endings}. Default: MODEL.{command}.json.", name),
        options.no_output,
        options.force,
    )


def _output_option(endings: str, name: str = "output") -> Any:
    return option(
        "--output",
        "-o",
        name,
        section="Output",
        type=FileName("file"),
        help=f"File to write: {endings}",
    )


def resolve_features_file(
    output: str | None, force: bool, endings: Sequence[str], folders: Sequence[str | None]
) -> AnalysisFile | None:
    """Return the file to write after checking it; None for none."""
    if output is None:
        return None
    path = Path(output)
    ending = _usable_ending(path, endings)
    for folder in folders:
        if folder is not None and path.parent.resolve() == Path(folder).resolve():
            raise RequestError(
                f"The output {path} would be among the files of {folder}.",
                "Set --output to a file in another folder.",
            )
    return _checked_file(path, ending, force)


def resolve_model_file(
    command: str, output: str | None, force: bool, model: ModelRequest
) -> AnalysisFile:
    """Return the file to write, by default ``MODEL.command.json``, after checking it."""
    from hookscope.files import output_path as outputs

    path = Path(output) if output else outputs.default_path(model.stem, command, ".json")
    return _checked_file(path, _usable_ending(path, (*outputs.ANALYSES, outputs.PAGE)), force)


def _usable_ending(path: Path, endings: Sequence[str]) -> str:
    """Return the suffix of the file, after checking that its format can be written here."""
    from hookscope.files import output_path as outputs

    ending = outputs.known_ending(path, endings)
    if ending in outputs.PICTURE_MARKS:
        from hookscope.views.images import require_matplotlib

        require_matplotlib()
    return ending


def _checked_file(path: Path, ending: str, force: bool) -> AnalysisFile:
    from hookscope.files.output_path import check_output

    return AnalysisFile(path, check_output(path, force, suffix=ending))


def show_analysis(console: Console, result: Any, file: AnalysisFile | None, size: int) -> None:
    """Print the result, then a note on its file of ``size`` bytes."""
    console.show(result, None if file is None else str(file.path))
    if file is not None:
        note_written_file(console, file.path, size, file.replaces)
