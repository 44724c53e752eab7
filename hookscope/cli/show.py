"""``hookscope show``: show the contents of a file, without torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import picture_options
from hookscope.cli.commands import Command, Example, combine, command, flag
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.table_options import table_options
from hookscope.errors import RequestError
from hookscope.specs.output_path import names_folder

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.results.capture_file import CaptureFile
    from hookscope.specs.tensor_key import Index

EXAMPLES = (
    Example(
        "hookscope show sample_models/five.safetensors",
        "The table of a capture.",
    ),
    Example(
        "hookscope show sample_models/five.safetensors conv2",
        "One layer: statistics, a histogram and the largest entries.",
    ),
    Example(
        'hookscope show sample_models/five.safetensors "conv1/output[0,3]"',
        "The same for a slice, as in numpy.",
    ),
    Example(
        "hookscope show sample_models/five.safetensors conv1 --map --by strength --count 4",
        "The four strongest feature maps, in the terminal.",
    ),
)
MAPS = "Maps"

maps = combine(
    flag("map", section=MAPS, help="Draw feature maps of each KEY in the terminal."),
    picture_options.channels(MAPS),
    picture_options.channel_details(MAPS),
    picture_options.scale(MAPS),
)


@command(
    "show",
    picture_options.tensors,
    maps,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="map channels by count verbose",
    topics="keys",
)
def show(ctx: click.Context, file: str, keys: tuple[str, ...], **values: Any) -> None:
    """Show the contents of a result file.

    Without a KEY, prints the table of the file; with -v also its metadata. With a KEY, prints
    statistics, a histogram and the largest entries of each tensor, or with --map its feature maps:
    in colour if the terminal has 256 colours, otherwise as ASCII shades. FILE may be a folder of
    features. Torch is not loaded, and only the tensors shown are read.
    """
    console: Console = ctx.obj
    draws = values.pop("map")
    if names_folder(file):
        _refuse_idle_choices(ctx, draws)
        _show_features(console, file, keys[0] if keys else "LAYER" if draws else "")
        return
    _refuse_misfits(ctx, file, keys, draws, console.json)
    from hookscope.results.capture_file import open_capture
    from hookscope.specs.tensor_key import choose_keys

    capture = open_capture(file)
    wanted = choose_keys(keys, [record.key for record in capture.records], file)
    if wanted and (console.sort or console.top):
        raise RequestError(
            "--sort and --top are for the table of the whole file.", "Leave out KEY, or the option."
        )
    if draws:
        for key, index in wanted:
            console.result(_maps(console, capture, key, index, values))
    elif wanted:
        _show_values(console, capture, wanted)
    else:
        _show_summary(console, capture)


def _show_features(console: Console, folder: str, key: str) -> None:
    if key:
        raise RequestError(
            f"{folder} is a features folder; show prints the values of a single file.",
            f"Export it first: hookscope export {folder} --layer {key}",
        )
    from hookscope.results.features.features import Features

    features = Features(folder)
    console.show(features)
    if console.verbose and not console.json:
        from hookscope.views.text.show import provenance_lines

        shown = ("keys", "shards", "fired", "silent")  # shown in the table, or too long
        origin = {name: v for name, v in features.manifest.items() if name not in shown}
        console.separate()
        console.result(provenance_lines(origin, console.text_options))


def _show_summary(console: Console, capture: CaptureFile) -> None:
    if console.json:
        from hookscope.views.text.documents import show_document

        console.document(show_document(capture, str(capture.path)))
        return
    console.show(capture)
    if console.verbose:
        from hookscope.views.text.show import provenance_lines

        console.separate()
        console.result(provenance_lines(capture.metadata, console.text_options))


def _show_values(console: Console, capture: CaptureFile, wanted: list[tuple[str, Index]]) -> None:
    from hookscope.views.images.tensor_view import read_tensor_view

    if console.json:
        from hookscope.views.text.documents import show_document

        views = [read_tensor_view(capture, key, index) for key, index in wanted]
        console.document(show_document(capture, str(capture.path), views))
        return
    for i, (key, index) in enumerate(wanted):
        if i:
            console.separate()
        console.show(read_tensor_view(capture, key, index))


def _maps(
    console: Console, capture: CaptureFile, key: str, index: Index, values: dict[str, Any]
) -> list[Text]:
    from hookscope.views.images.feature_maps import read_feature_maps
    from hookscope.views.text.terminal_maps import map_lines

    chosen = {name: value for name, value in values.items() if name != "scale"}
    maps = read_feature_maps(capture, key, index, **chosen)
    colored = console.colors >= 256 and not console.ascii
    return map_lines(maps, console.window, colored, values["scale"] == "each", console.ascii)


def _refuse_misfits(
    ctx: click.Context, file: str, keys: tuple[str, ...], draws: bool, json: bool
) -> None:
    if not os.path.exists(file):
        raise RequestError(
            f"There is no file {file}.", "Write one with 'hookscope capture', or check the name."
        )
    if draws and json:
        raise RequestError("--map and --json cannot be combined.", "Leave out one of them.")
    if draws and not keys:
        raise RequestError(
            "--map needs a KEY.",
            f"'hookscope show {file}' lists the layers in the file.",
        )
    _refuse_idle_choices(ctx, draws)


def _refuse_idle_choices(ctx: click.Context, draws: bool) -> None:
    assert isinstance(ctx.command, Command)
    for option in ctx.command.options():
        typed = ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if option.section == MAPS and typed and not draws and option.name != "map":
            raise RequestError(f"--{option.key} needs --map.", "Add --map.")
