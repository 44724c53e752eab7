"""The file that a command writes: its options, its default name and its checks, declared once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import FileName, IntRange
from hookscope.errors import RequestError
from hookscope.files import output_path as outputs
from hookscope.files.words import bytes_text
from hookscope.specs.choices import DPI, MAX_DPI, MIN_DPI

SECTION = "Output"
_VALUES = ("output", "no_output", "force", "dpi")  # the parameters of the options below

_no_output = option(
    "--no-output", section=SECTION, is_flag=True, default=False, help="Do not write a file."
)
_force = flag("force", section=SECTION, help="Replace a file that hookscope did not write.")
_resolution = option(
    "--dpi",
    section=SECTION,
    default=DPI,
    type=IntRange(MIN_DPI, MAX_DPI),
    metavar="N",
    help="Resolution in dots per inch.",
)


class OutputFile(NamedTuple):
    """The file to write, whose name and folder are checked; ``replaces`` an earlier file."""

    path: Path
    ending: str
    replaces: bool
    dpi: int

    def written(self, size: int) -> str:
        """Return the note on the file of ``size`` bytes that was written."""
        replaced = ", replacing an earlier file" if self.replaces else ""
        return f"wrote {self.path} ({bytes_text(size)}{replaced})"


@dataclass(frozen=True)
class Output:
    """What a command can write, and where."""

    help: str
    ending_of: Callable[[Path], str]  # checks and returns the suffix; an empty one means a folder
    # What follows the stem of a name without --output; empty if there is none then. It has no
    # layer's name: a shell would expand an unquoted layer3.*.
    default: str = ""
    optional: bool = False  # whether there is --no-output
    dpi: bool = False  # whether there is --dpi
    flags: tuple[str, ...] = ("--output", "-o")
    name: str = "output"  # of the parameter
    force: bool = True  # whether it adds --force; of a second output, the first one does

    @property
    def options(self) -> Any:
        """The options of the command."""
        named = option(
            *self.flags, self.name, section=SECTION, type=FileName("file"), help=self.help
        )
        return combine(
            *([_resolution] if self.dpi else []),
            named,
            *([_no_output] if self.optional else []),
            *([_force] if self.force else []),
        )

    def resolve(
        self,
        ctx: click.Context,
        stem: str = "",
        inputs: Sequence[Any] = (),
        folders: Sequence[str | None] = (),
    ) -> OutputFile | None:
        """Return the file of this call, after checking it; None if no file is to be written.

        It may be none of ``inputs``, and not among the files of ``folders``.
        """
        given = ctx.params[self.name]
        if (self.optional and not writes_file(ctx)) or not (given or self.default):
            return None
        path = Path(given or stem + self.default.format(command=ctx.info_name))
        check_not_among(path, inputs)
        ending = self.ending_of(path)
        _check_outside(path, folders)
        force = ctx.params["force"]
        replaces = bool(ending) and outputs.check_output(path, force, self.flags[0], ending)
        return OutputFile(path, ending, replaces, ctx.params.get("dpi", DPI))


def without_output(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command without those of the options of its output."""
    return {name: value for name, value in values.items() if name not in _VALUES}


def _check_outside(path: Path, folders: Sequence[str | None]) -> None:
    for folder in folders:
        if folder is not None and path.parent.resolve() == Path(folder).resolve():
            raise RequestError(
                f"The output {path} would be among the files of {folder}.",
                "Set --output to a file in another folder.",
            )


def check_not_among(path: Path, inputs: Sequence[Any]) -> None:
    """Raise RequestError if the command reads the file that it is to write."""
    for name in inputs if path.exists() else ():
        is_file = isinstance(name, str | os.PathLike) and os.path.exists(name)
        if is_file and os.path.samefile(name, path):
            raise RequestError(
                f"{path} is an input of this command and would be overwritten by its output.",
                "Name another file with --output.",
            )


def writes_file(ctx: click.Context) -> bool:
    """Whether the command writes a file: of --output and --no-output the stronger source counts."""
    if not ctx.params["no_output"]:
        return True
    source = ctx.get_parameter_source("output") or ParameterSource.DEFAULT
    without = ctx.get_parameter_source("no_output") or ParameterSource.DEFAULT
    if source is without:
        raise click.UsageError("--output and --no-output cannot both be given.", ctx)
    return source < without


def files_read(values: Mapping[str, Any]) -> list[Any]:
    """Return the files that the options name: inputs, weights, patches and targets."""
    from hookscope.specs.edit import files_read_by
    from hookscope.specs.input_spec import input_paths
    from hookscope.specs.sweep_edit import sweep_files

    read: list[Any] = [*files_read_by(values.get("edits") or ())]
    read += sweep_files(values["edit"]) if "edit" in values else ()
    read += input_paths(values.get("input") or ())
    return [*read, values.get("weights"), values.get("target")]


# The formats


def one_of(*endings: str) -> Callable[[Path], str]:
    """Return a function that checks the suffix of a file of one of several formats."""
    return partial(_analysis_ending, endings=endings)


def only(suffix: str) -> Callable[[Path], str]:
    """Return a function that checks that a name has this suffix or none."""

    def ending_of(path: Path) -> str:
        outputs.check_ending(path, suffix)
        return suffix

    return ending_of


def _analysis_ending(path: Path, endings: Sequence[str]) -> str:
    ending = outputs.known_ending(path, endings)
    if ending in outputs.PICTURE_MARKS:
        from hookscope.views.images import require_matplotlib

        require_matplotlib()
    return ending


RECORDING = Output(
    "File to write: .safetensors, .npy or .npz. An .npy file contains one tensor. Default:"
    " MODEL.COMMAND.safetensors.",
    outputs.recording_ending,
    ".{command}.safetensors",
    optional=True,
)
PICTURE = Output(
    "Picture to write: .png, .jpg, .svg or .pdf. Default: NAME.COMMAND.png.",
    outputs.picture_ending,
    ".{command}.png",
    dpi=True,
)


ANALYSIS = Output(
    "File to write: .json, .csv, .html, or a picture (.png, .jpg, .svg, .pdf). Default:"
    " MODEL.COMMAND.json.",
    one_of(*outputs.ANALYSES, outputs.PAGE),
    ".{command}.json",
    optional=True,
    dpi=True,
)


def analysis_if_named(formats: str, *more: str) -> Output:
    """Return an output without a default: its formats for the help, and additional endings."""
    return Output(
        f"File to write: {formats}. Default: none.", one_of(*outputs.ANALYSES, *more), dpi=True
    )
