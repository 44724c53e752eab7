"""``hookscope attach``: the models of a Python process that hookscope did not start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import RECORDING
from hookscope.cli.param_types import IntRange
from hookscope.cli.run_context import running
from hookscope.errors import CheckFailed, RequestError
from hookscope.files.shell_words import join_words
from hookscope.files.words import plural
from hookscope.specs.program_options import AttachOptions
from hookscope.specs.request import LayerSelection

if TYPE_CHECKING:
    from hookscope.hooks.capture import Capture

EXAMPLES = (
    Example("hookscope attach 4711 --list", "The models that process 4711 calls in ten seconds."),
    Example(
        'hookscope attach 4711 --layer "unet.mid_block*" -o mid.safetensors',
        "The outputs of some layers in the next call of their model.",
    ),
)

OUTPUT = replace(
    RECORDING,
    help="File to write: .safetensors, .npy or .npz. An .npy file contains one tensor. Default:"
    " process-PID.attach.safetensors.",
)


@command(
    "attach",
    click.argument(
        "pid",
        metavar="PID",
        type=IntRange(min=1),
        help="Number of one of your Python processes, as 'ps' prints it.",
    ),
    options_of(
        LayerSelection,
        "layers",
        layers={
            "section": AttachOptions.section,
            "help": "Record these layers in the next call of their model. Repeatable; ! excludes.",
        },
    ),
    options_of(AttachOptions),
    OUTPUT.options,
    table_options,
    examples=EXAMPLES,
    main="list layer wait output",
    topics="layers",
)
def attach_command(ctx: click.Context, pid: int, layers: tuple[str, ...], **values: Any) -> None:
    """Look into the models of a Python process that runs now.

    With --list, prints the models that it calls, by the names that they have in it. With --layer,
    waits for the next call of the model that has these layers, and writes their outputs to a file
    as 'hookscope capture' does. The process computes the same as before, and the hooks are removed
    after the call.

    Both processes need Python 3.14 or newer, of the same minor version, and the same version of
    hookscope. The system must let a process look into another one, as a debugger does. A program
    that 'hookscope run' started needs none of this. Exit status: 2 if the process cannot be asked
    or calls no such model, 1 if it ends meanwhile.
    """
    from hookscope.stores.runs.attachment import ask_process
    from hookscope.stores.runs.live_socket import read_result

    console: Console = ctx.obj
    options = AttachOptions(values["list"], values["wait"], values["max_bytes"])
    asked = options.asked(layers)
    console.interrupt_message = "Interrupted; nothing was written."
    if options.list:
        if values["output"] is not None:
            raise RequestError("--output is for --layer.", "Leave it out, or add --json.")
        with console.status(f"Following process {pid} for {plural(options.wait, 'second')} ..."):
            models, _ = ask_process(pid, asked, (), read_result, options.wait)
        console.show(models)
        return
    file = OUTPUT.resolve(ctx, f"process-{pid}")

    def read(path: Path) -> Capture:
        with running(console, f"Reading what process {pid} recorded ..."):
            from hookscope.hooks.capture import Capture

            return Capture.load(path)

    with console.status(f"Waiting for the next call of a model in process {pid} ..."):
        capture, answer = ask_process(pid, asked, layers, read, options.wait)
        if answer.unmet:
            raise CheckFailed(" ".join(answer.unmet), "Record fewer layers.")
        size = 0 if file is None else capture.save(file.path)
    console.show(capture, None if file is None else str(file.path))
    if file is not None:
        console.note(file.written(size))
        console.note(f"next: {join_words(['hookscope', 'show', str(file.path)])}")
