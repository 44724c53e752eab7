"""``hookscope show``: look at what a file holds, without loading torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import picture_options
from hookscope.cli.commands import Command, Example, combine, command, flag
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.errors import RequestError
from hookscope.specs.output_path import names_folder

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.results.capture_file import CaptureFile
    from hookscope.specs.tensor_key import Index

EXAMPLES = (
    Example(
        "hookscope show sample_models/five.safetensors",
        "The table that the capture printed when it was made.",
    ),
    Example(
        "hookscope show sample_models/five.safetensors conv2",
        "What one layer holds: statistics, a histogram, the largest entries.",
    ),
    Example(
        'hookscope show sample_models/five.safetensors "conv1/output[0,3]"',
        "The same of a part; a slice is numpy's.",
    ),
    Example(
        "hookscope show sample_models/five.safetensors conv1 --map --by strength --count 4",
        "The four strongest feature maps, drawn in the terminal.",
    ),
)
MAPS = "Maps"

maps = combine(
    flag("map", section=MAPS, help="Draw the feature maps of each KEY in the terminal."),
    picture_options.channels(MAPS),
    picture_options.channel_details(MAPS),
    picture_options.scale(MAPS),
)


@command(
    "show",
    picture_options.tensors,
    maps,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def show(ctx: click.Context, file: str, keys: tuple[str, ...], **values: Any) -> None:
    """Look at what a file holds.

    Alone, the table that was printed when the file was made; with -v, where it came from. With a
    KEY, the statistics, a histogram and the largest entries of each tensor, or with --map its
    feature maps, as large as the window allows: in colour where the terminal has 256 of them or
    more, in ASCII shades elsewhere. Of a folder of features, what is kept of each input. Torch is
    not loaded, and no more is read than what is shown.
    """
    out: Console = ctx.obj
    draws = values.pop("map")
    if names_folder(file):
        _refuse_idle_choices(ctx, draws)
        _show_features(out, file, keys[0] if keys else "LAYER" if draws else "")
        return
    _refuse_misfits(ctx, file, keys, draws, out.json)
    from hookscope.results.capture_file import open_capture
    from hookscope.specs.tensor_key import choose_keys

    capture = open_capture(file)
    wanted = choose_keys(keys, [record.key for record in capture.records], file)
    if draws:
        for key, index in wanted:
            out.result(_maps(out, capture, key, index, values))
    elif wanted:
        _show_values(out, capture, wanted)
    else:
        _show_summary(out, capture)


def _show_features(out: Console, folder: str, key: str) -> None:
    if key:
        raise RequestError(
            f"{folder} is a folder of features, and show looks at the values in a file.",
            f"Make one first: hookscope export {folder} --layer {key}",
        )
    from hookscope.results.features.features import Features

    features = Features(folder)
    if out.json:
        from hookscope.views.text.extract import features_document

        out.document(features_document(features))
        return
    from hookscope.views.text.extract import features_lines

    out.result(features_lines(features, out.width, out.ascii))
    if out.verbose:
        from hookscope.views.text.show import provenance_lines

        shown = ("keys", "shards", "fired", "silent")  # one line each in the table, or many
        origin = {name: v for name, v in features.manifest.items() if name not in shown}
        out.separate()
        out.result(provenance_lines(origin, out.width, out.ascii))


def _show_summary(out: Console, capture: CaptureFile) -> None:
    if out.json:
        from hookscope.views.text.documents import show_document

        out.document(show_document(capture, str(capture.path)))
        return
    from hookscope.views.text.summary import summary_lines

    out.result(summary_lines(capture, out.width, out.ascii))
    if out.verbose:
        from hookscope.views.text.show import provenance_lines

        out.separate()
        out.result(provenance_lines(capture.metadata, out.width, out.ascii))


def _show_values(out: Console, capture: CaptureFile, wanted: list[tuple[str, Index]]) -> None:
    from hookscope.views.images.tensor_view import read_tensor_view

    if out.json:
        from hookscope.views.text.documents import show_document

        looks = [read_tensor_view(capture, key, index) for key, index in wanted]
        out.document(show_document(capture, str(capture.path), looks))
        return
    from hookscope.views.text.show import tensor_lines

    for i, (key, index) in enumerate(wanted):
        if i:
            out.separate()
        out.result(tensor_lines(read_tensor_view(capture, key, index), out.width, out.ascii))


def _maps(
    out: Console, capture: CaptureFile, key: str, index: Index, values: dict[str, Any]
) -> list[Text]:
    from hookscope.views.images.feature_maps import read_feature_maps
    from hookscope.views.text.terminal_maps import map_lines

    chosen = {name: value for name, value in values.items() if name != "scale"}
    maps = read_feature_maps(capture, key, index, **chosen)
    colored = out.colors >= 256 and not out.ascii
    return map_lines(maps, out.window, colored, values["scale"] == "each", out.ascii)


def _refuse_misfits(
    ctx: click.Context, file: str, keys: tuple[str, ...], draws: bool, json: bool
) -> None:
    if not os.path.exists(file):
        raise RequestError(
            f"There is no file {file}.", "Make one with 'hookscope capture', or name another."
        )
    if draws and json:
        raise RequestError(
            "--map draws in the terminal, and --json has no pictures.", "Leave out one of the two."
        )
    if draws and not keys:
        raise RequestError(
            "--map needs a KEY whose maps it draws.",
            f"'hookscope show {file}' lists the layers that the file holds.",
        )
    _refuse_idle_choices(ctx, draws)


def _refuse_idle_choices(ctx: click.Context, draws: bool) -> None:
    assert isinstance(ctx.command, Command)
    for given in ctx.command.options():
        typed = ctx.get_parameter_source(given.name) is ParameterSource.COMMANDLINE
        if given.section == MAPS and typed and not draws and given.name != "map":
            raise RequestError(f"--{given.key} is for the maps of --map.", "Add --map.")
