"""``hookscope export``: features of a dataset, or tensors of a capture, in one file."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file

EXAMPLES = (
    Example(
        "hookscope export sample_models/features/ --layer fc -o fc.npy",
        "One layer's rows as one array, for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/features/",
        "All of them in one safetensors file, which 'hookscope show' opens too.",
    ),
    Example(
        "hookscope export sample_models/five.safetensors --layer conv1 -o conv1.npy",
        "One tensor of a capture, for numpy.load.",
    ),
)

features = click.argument(
    "features",
    metavar="FOLDER",
    type=FileName("folder"),
    help="The folder that 'hookscope extract' wrote, or its address.",
)

output = combine(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The file to write: .safetensors, .npy (one array), .npz or, of a folder, .parquet;"
        " NAME.export.safetensors here if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)


@command(
    "export",
    click.argument(
        "features",
        metavar="FOLDER|FILE",
        type=FileName("file"),
        help="The folder that 'hookscope extract' wrote, or its address; or a file"
        " that capture, grads or step wrote.",
    ),
    option(
        "--layer",
        "-l",
        "layers",
        section="Layers",
        multiple=True,
        metavar="KEY",
        help="A layer, a key as 'hookscope show' lists it, or a glob over either; of a FILE also"
        " with a slice behind it. Repeatable; all if not given.",
    ),
    output,
    global_options,
    click.pass_obj,
    examples=EXAMPLES,
)
def export(console: Console, features: str, output: str | None, force: bool, **values: Any) -> None:
    """Write the features of a dataset, or tensors of a capture, to one file.

    Values are read and written some megabytes at a time, so memory does not grow with the number of
    inputs. Torch is not loaded. In .npy and .npz files bfloat16 and the float8s become float32 and
    complex32 becomes complex64, with the same values.
    """
    from pathlib import Path

    from hookscope.specs import output_path as outputs

    name = os.path.basename(os.path.abspath(features))
    if os.path.isfile(features):
        name = Path(features).stem
    path = Path(output) if output else outputs.default_path(name, "export")
    replaces = outputs.check_output(path, force, suffix=outputs.table_ending(path))
    console.interrupt_message = "Interrupted; nothing was written."
    from hookscope.api.export import export as api_export

    with console.bar("Exporting") as advance:
        done = api_export(features, path, progress=advance, **values)
    if console.json:
        from hookscope.views.text.documents import document

        console.document(document("export", done.to_json()))
    else:
        from hookscope.views import display

        console.result(display.text(done, console.text_options))
    note_written_file(console, path, done.bytes, replaces)
