"""``hookscope show``: show the contents of a file, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from hookscope.cli import options, picture_options
from hookscope.cli.commands import Command, Example, combine, flag, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.run_context import reading
from hookscope.commands.subject import check_trust, subject_of
from hookscope.errors import RequestError
from hookscope.files.output_path import is_fingerprint, names_folder, runs_in
from hookscope.files.shell_words import cite_command, join_words, quote_word
from hookscope.files.suggestions import RESULT_FILES, near_files
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.request import LayerSelection
from hookscope.specs.subject_kinds import CAPTURES, FEATURES, RUNS, WEIGHTS

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.specs.tensor_key import Index
    from hookscope.stores.capture_file import CaptureFile

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
    Example(
        "hookscope show sample_models/digits.safetensors conv2 --sort norm",
        "Statistics of the tensors in a file of weights.",
    ),
    Example(
        'hookscope show sample_models/run --layer "fc*"',
        "A training run: its loss, and the last values of some layers.",
    ),
    Example(
        "hookscope show sample_models/run fc2/weight.grad",
        "One curve of a training run.",
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
    options_of(
        LayerSelection,
        "layers",
        layers={
            "section": "Tensors",
            "help": "A KEY, or layers in the table of a run folder. Repeatable; ! excludes.",
        },
    ),
    option(
        "--live",
        is_flag=True,
        section="Training runs",
        help="Show the layers in the next step of a training that runs now.",
    ),
    options.trust_weights,
    table_options,
    examples=EXAMPLES,
    main="map channels by count layer verbose",
    also="scale seed",
    topics="keys",
)
def show_command(
    ctx: click.Context,
    file: str,
    keys: tuple[str, ...],
    layers: tuple[str, ...],
    live: bool,
    **values: Any,
) -> None:
    """Show the contents of a result file or weights.

    Without a KEY, prints the table of the file; with -v also its metadata. With a KEY, prints
    statistics, a histogram and the largest entries of each tensor, or with --map its feature maps:
    in colour if the terminal has 256 colours, otherwise as ASCII shades. FILE may be a folder of
    features. For the folder of a training run, prints what is known of it and the last values of
    each layer, and for a KEY its values over the steps. For a folder of runs, such as runs/, prints
    a row for each. With --live, prints the layers in the next step of a training that runs now.
    Otherwise torch is not loaded, and only the tensors shown are read.

    For weights (a file, a folder, an index, or FILE#PART of a checkpoint), prints the tensors
    without reading values; with a KEY that names one tensor, its values; with one that names a
    module or is a glob, a row of statistics for each tensor.
    """
    console: Console = ctx.obj
    draws, trust = values.pop("map"), values.pop("trust")
    if trust:
        check_trust(file)
    kind = subject_of(file).kind
    if kind not in SHOWN:  # its error says what it is
        kind = FEATURES if names_folder(file) else CAPTURES
    if kind != RUNS:
        keys, layers = (*keys, *layers), ()
    asked = _Request(file, keys, layers, live, draws, trust, PlotOptions(**values))
    _refuse_misfits(ctx, kind, asked)
    SHOWN[kind](console, asked)


class _Request(NamedTuple):
    """What is asked of the file; ``maps`` are the options of feature maps."""

    file: str
    keys: tuple[str, ...]
    layers: tuple[str, ...]
    live: bool
    draws: bool
    trust: bool
    maps: PlotOptions


def _show_capture(console: Console, asked: _Request) -> None:
    from hookscope.results.located_positions import choose_parts
    from hookscope.stores.capture_file import open_capture

    for name in ("json", "markdown"):
        if asked.draws and getattr(console, name):
            raise RequestError(f"--map and --{name} cannot be combined.", "Leave out one of them.")
    if asked.draws and not asked.keys:
        raise RequestError(
            "--map needs a KEY.",
            f"{cite_command('hookscope', 'show', asked.file)} lists the layers in the file.",
        )
    capture = open_capture(asked.file)
    wanted = choose_parts(asked.keys, capture, asked.file)
    if wanted and (console.sort or console.top):
        raise RequestError(
            "--sort and --top are for the table of the whole file.", "Leave out KEY, or the option."
        )
    if asked.draws:
        for key, index in wanted:
            console.result(_maps(console, capture, key, index, asked.maps))
    elif wanted:
        _show_values(console, capture, wanted)
    else:
        _show_summary(console, capture)


def _show_next_step(console: Console, folder: str, layers: Sequence[str]) -> None:
    from hookscope.cli.run_context import running
    from hookscope.commands.capture import capture

    with running(console, f"Waiting for the next step of {folder} ..."):
        recorded = capture.checked(folder, layers=layers)()
    console.show(recorded)


def _show_features(console: Console, asked: _Request) -> None:
    folder = asked.file
    if key := asked.keys[0] if asked.keys else "LAYER" if asked.draws else "":
        raise RequestError(
            f"{folder} is a features folder; show prints the values of a single file.",
            f"Export it first: hookscope export {quote_word(folder)} --layer {quote_word(key)}",
        )
    from hookscope.stores.features.features import Features

    features = Features(folder)
    console.show(features)
    # What is shown in the table, or too long.
    _show_origin(console, features.manifest, "keys", "shards", "executed", "not_executed")


def _show_origin(console: Console, metadata: Mapping[str, Any], *left_out: str) -> None:
    """With ``--verbose``, print the metadata below the table of a file."""
    if console.verbose and not console.json:
        from hookscope.views.stored_tensors import provenance_lines

        origin = {name: value for name, value in metadata.items() if name not in left_out}
        console.separate()
        console.result(provenance_lines(origin, console.text_options))


def _show_runs(console: Console, asked: _Request) -> None:
    if asked.draws:
        raise RequestError(
            "--map draws tensors, and a training run has only numbers.", "Leave out --map."
        )
    if asked.live:
        _show_next_step(console, asked.file, [*asked.keys, *asked.layers])
    elif runs := runs_in(asked.file):
        _show_run_list(console, asked.file, runs[0], [*asked.keys, *asked.layers])
    else:
        _show_run(console, asked.file, asked.keys, asked.layers)


def _show_run_list(console: Console, folder: str, first: Path, names: Sequence[str]) -> None:
    from hookscope.stores.runs.run_list import RunList

    if names:
        raise RequestError(
            f"{folder} has several runs, and a KEY or --layer is for one.",
            f"Name the run: {join_words(['hookscope', 'show', str(first), names[0]])}",
        )
    console.show(RunList.of(folder))
    console.note(f"next: {join_words(['hookscope', 'show', str(first)])}")


def _show_run(console: Console, folder: str, keys: Sequence[str], layers: Sequence[str]) -> None:
    from hookscope.file_analysis.run_summary import RunSummary, read_key_curves
    from hookscope.stores.runs.rank_runs import open_run

    if keys and layers:
        raise RequestError("KEY and --layer cannot be combined.", "Leave out one of them.")
    run = open_run(folder)
    if not keys:
        console.show(RunSummary.of(run, layers))
        return
    curves = read_key_curves(run, keys)
    if console.json:
        from hookscope.views.training_run import run_document

        console.document(run_document(RunSummary(run, (), None), curves))
        return
    console.show_each(curves)


def _show_weights(console: Console, asked: _Request) -> None:
    """Show the tensors by their headers, one with its values, or statistics of several."""
    from hookscope.commands.load import load
    from hookscope.stores.weights.weight_set import WeightSet
    from hookscope.views.images.tensor_view import choose_weights
    from hookscope.views.weight_set import weights_document

    file, keys = asked.file, asked.keys
    if asked.draws:
        raise RequestError(
            f"--map draws what a layer returned, and {file} has weights.",
            f"Write a picture of a weight: hookscope plot {quote_word(file)} KEY",
        )
    with reading(console, f"Reading {file} ...", asked.trust):
        weights = load(file, trust=asked.trust)
    assert isinstance(weights, WeightSet)
    if not keys:
        console.show(weights)
        _show_origin(console, weights.metadata)
        name = next(iter(weights.tensors), "KEY")
        console.note(f"next: {join_words(['hookscope', 'show', file, name])}")
        return
    choice = choose_weights(weights, keys)
    if not choice.is_table and (console.sort or console.top):
        raise RequestError(
            "--sort and --top are for tables of tensors.", "Give a KEY that matches several."
        )
    with console.bar("Reading") as advance:
        summaries = choice.read(advance)
    if console.json:
        console.document(weights_document(weights, summaries))
    elif choice.is_table:
        from hookscope.views.stored_tensors import statistics_lines

        console.result(statistics_lines(summaries, console.text_options))
    else:
        console.show_each(summaries)


def _show_summary(console: Console, capture: CaptureFile) -> None:
    if console.json:
        from hookscope.views.stored_tensors import show_document

        console.document(show_document(capture, str(capture.path)))
        return
    console.show(capture)
    _show_origin(console, capture.metadata, "columns")  # too long


def _show_values(console: Console, capture: CaptureFile, wanted: list[tuple[str, Index]]) -> None:
    from hookscope.views.images.tensor_view import read_tensor_view

    views = (read_tensor_view(capture, key, index) for key, index in wanted)
    if not console.json:
        console.show_each(views)
        return
    from hookscope.views.stored_tensors import show_document

    console.document(show_document(capture, str(capture.path), list(views)))


def _maps(
    console: Console, capture: CaptureFile, key: str, index: Index, options: PlotOptions
) -> list[Text]:
    from hookscope.views.images.feature_maps import read_feature_maps
    from hookscope.views.text.terminal_maps import map_lines

    maps = read_feature_maps(capture, key, index, options)
    colored = console.colors >= 256 and not console.ascii
    return map_lines(maps, console.window, colored, options.each, console.ascii)


SHOWN = {
    CAPTURES: _show_capture,
    FEATURES: _show_features,
    RUNS: _show_runs,
    WEIGHTS: _show_weights,
}


def _refuse_misfits(ctx: click.Context, kind: str, asked: _Request) -> None:
    file = asked.file
    if is_fingerprint(file):
        raise RequestError(
            f"{file} is a fingerprint, which is a text file.",
            f"Compare a model with it: hookscope diff MODEL {file}",
        )
    if kind == CAPTURES and not os.path.exists(file):
        raise RequestError(
            f"There is no file or folder {file!r}.",
            near_files(
                file,
                "Write one with 'hookscope capture' or 'hookscope run', or check the name.",
                RESULT_FILES,
            ),
        )
    if asked.live and kind != RUNS:
        raise RequestError(
            f"--live is for the folder of a training run, and {file} is not one.", "Leave it out."
        )
    assert isinstance(ctx.command, Command)
    for declared in ctx.command.options():
        typed = ctx.get_parameter_source(declared.name) is ParameterSource.COMMANDLINE
        if declared.section == MAPS and typed and not asked.draws and declared.name != "map":
            raise RequestError(f"--{declared.key} needs --map.", "Add --map.")
