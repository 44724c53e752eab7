"""``hookscope export``: the features of a dataset in one file, without loading torch."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.command import Example, command, flag, option, together
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.cli.recording import say_what_was_written
from hookscope.cli.values import FileName

EXAMPLES = (
    Example(
        "hookscope export sample_models/features/ --layer fc -o fc.npy",
        "One layer's rows as one array, for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/features/",
        "All of them in one safetensors file, which 'hookscope show' opens too.",
    ),
)

features = click.argument(
    "features",
    metavar="FOLDER",
    type=FileName("folder"),
    help="The folder that 'hookscope capture --output FOLDER/' wrote, or its address.",
)

output = together(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The file to write, .safetensors, .npy (of one layer) or .parquet;"
        " FOLDER.export.safetensors here if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)


@command(
    "export",
    features,
    option(
        "--layer",
        "-l",
        "layers",
        section="Layers",
        multiple=True,
        metavar="KEY",
        help="A layer, a key as 'hookscope show FOLDER' lists it, or a glob over either."
        " Repeatable; all layers if not given.",
    ),
    output,
    everywhere,
    click.pass_obj,
    examples=EXAMPLES,
)
def export(out: Out, features: str, output: str | None, force: bool, **values: Any) -> None:
    """Write the features of a dataset to one file.

    The shards are read and written some megabytes at a time, so memory does not grow with the
    number of inputs. Torch is not loaded.
    """
    from pathlib import Path

    from hookscope import outputs

    name = os.path.basename(os.path.abspath(features))
    path = Path(output) if output else outputs.default_path(name, "export")
    replaces = outputs.check(path, force, suffix=outputs.table_ending(path))
    out.last_words = "Interrupted; nothing was written."
    from hookscope.verbs.export import export as verb

    with out.bar("Exporting") as advance:
        done = verb(features, path, progress=advance, **values)
    if out.json:
        from hookscope.render.json import document

        out.document(document("export", done.to_json()))
    else:
        from hookscope.render.features import rows_lines

        out.result(rows_lines(done.rows, out.width, out.ascii))
    say_what_was_written(out, path, done.bytes, replaces)
