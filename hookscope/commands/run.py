"""``hookscope run``: a training script, run as Python would, and watched."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.commands import Example, combine, flag
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.param_types import FileName
from hookscope.errors import RequestError
from hookscope.specs.watch_options import WatchOptions
from hookscope.stores.runs.run_folder import check_run_folder
from hookscope.training.run_session import RunSession, check_program
from hookscope.training.script_runner import Program

EXAMPLES = (
    Example(
        "hookscope run sample_models/train_digits.py",
        "A training script; arguments after its name are passed to it.",
    ),
    Example(
        "hookscope run --every 10 --stop-on nan sample_models/train_digits.py",
        "Each tenth step, and the end at the first NaN.",
    ),
)

program = combine(
    click.argument(
        "script",
        metavar="SCRIPT",
        required=False,
        type=FileName("script"),
        help="Python script, - for stdin, folder or archive with a __main__.py; with -m, a module.",
    ),
    click.argument(
        "args",
        metavar="[ARGS]...",
        nargs=-1,
        type=click.UNPROCESSED,
        help="Arguments of the script. Options of hookscope go before SCRIPT.",
    ),
    flag("module", "-m", section="Script", help="SCRIPT is a module, as with 'python -m'."),
)

# Of these no script is likely to have one of its own.
_OWN_OPTIONS = ("--stop-on", "--what", "--live")


@command(
    "run",
    program,
    options_of(WatchOptions),
    examples=EXAMPLES,
    main="module every layer what stop-on output",
    context_settings={"allow_interspersed_args": False},
    topics="layers",
)
def run_command(
    ctx: click.Context,
    script: str | None,
    args: tuple[str, ...],
    module: bool,
    layers: tuple[str, ...],
    stop_on: tuple[str, ...] | None,
    **values: Any,
) -> Program:
    """Run a training script and watch it.

    Runs the script as Python would and records its models and optimizers: statistics of
    activations, gradients, parameters and updates, by layer and step. The output of the script, its
    results and its exit status are those of a run without hookscope. Exit status: that of the
    script; 2 for a wrong request.
    """
    if script is None:
        raise RequestError(
            "No module was named." if module else "No script was named.",
            f"Write: hookscope run {'-m mypackage.train' if module else 'train.py'}",
        )
    options = WatchOptions(layers=layers or None, stop_on=stop_on or (), **values)
    console: Console = ctx.obj
    if late := [word for word in args if word.partition("=")[0] in _OWN_OPTIONS]:
        console.note(
            f"{late[0]} is passed to the script: options of hookscope come before the script's name"
        )
    program = Program(script, args, is_module=module)
    session = RunSession(options, program, quiet=console.quiet)
    check_program(session.program)
    check_run_folder(options.output, os.environ)
    session.watch_from_import()
    return session.program
