"""``hookscope export``: features of a dataset, tensors of a capture, curves of a run, in a file."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.options import force as force_option
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file
from hookscope.specs.command_options import ExportOptions

EXAMPLES = (
    Example(
        "hookscope export sample_models/features/ --layer fc -o fc.npy",
        "The rows of one layer as an array for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/features/",
        "All layers in one safetensors file.",
    ),
    Example(
        "hookscope export sample_models/five.safetensors --layer conv1 -o conv1.npy",
        "One tensor of a capture as an array for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/run -o curves.csv",
        "All numbers of a training run as a table.",
    ),
    Example(
        "hookscope export sample_models/run -o tensorboard/",
        "The same as scalars for TensorBoard.",
    ),
)

features = click.argument(
    "features",
    metavar="FOLDER",
    type=FileName("folder"),
    help="Folder that 'hookscope extract' wrote, or its address.",
)

output = combine(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="File to write: .safetensors, .npy (one array), .npz, or .parquet (folders only)."
        " For a training run: .csv, .parquet, or a folder for TensorBoard."
        " Default: NAME.export.safetensors; for a training run NAME.export.csv.",
    ),
    force_option,
)


@command(
    "export",
    click.argument(
        "features",
        metavar="FOLDER|FILE",
        type=FileName("file"),
        help="Folder of 'hookscope extract' or 'hookscope run', or result file of capture, grads"
        " or step.",
    ),
    options_of(ExportOptions),
    output,
    global_options,
    click.pass_obj,
    examples=EXAMPLES,
    main="layer output force",
    topics="keys",
)
def export(console: Console, features: str, output: str | None, force: bool, **values: Any) -> None:
    """Write features, tensors, or curves of a run, to one file.

    Values are read and written a few megabytes at a time, so memory use does not depend on the
    number of inputs. Torch is not loaded. In .npy and .npz files bfloat16 and float8 become float32
    and complex32 becomes complex64, without loss.
    """
    from pathlib import Path

    from hookscope.files import output_path as outputs

    name = os.path.basename(os.path.abspath(features))
    if os.path.isfile(features):
        name = Path(features).stem
    if outputs.is_run_folder(features):
        path = Path(output) if output else outputs.default_path(name, "export", ".csv")
        replaces = outputs.check_run_export(path, force)
    else:
        path = Path(output) if output else outputs.default_path(name, "export")
        replaces = outputs.check_output(path, force, suffix=outputs.table_ending(path))
    console.interrupt_message = "Interrupted; nothing was written."
    from hookscope.api.export import export as api_export

    with console.bar("Exporting") as advance:
        done = api_export(features, path, progress=advance, **values)
    if console.json:
        from hookscope.views.view import make_document

        console.document(make_document("export", done.to_json()))
    else:
        from hookscope.views import display

        console.result(display.text(done, console.text_options))
    note_written_file(console, done.path, done.bytes, replaces)
