"""``hookscope run``: a program, run as Python would: its training watched, or its models seen."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from hookscope.cli.commands import Example, combine, flag
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.param_types import FileName
from hookscope.errors import RequestError
from hookscope.specs.intervention_spec import Interventions, resolve_hook_kinds
from hookscope.specs.program_options import (
    MODES,
    RECORDED,
    ProgramOptions,
    check_mode,
    check_trainable,
)
from hookscope.specs.tensor_key import OUTPUT
from hookscope.specs.watch_options import WATCHED, WatchOptions
from hookscope.training.model_session import ModelSession
from hookscope.training.run_session import ProgramSession, RunSession, check_program
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
    Example(
        "hookscope run --list sample_models/read_digits.py sample_models/five.png",
        "The models that any program calls, with their names in it.",
    ),
    Example(
        'hookscope run --capture --layer "network.conv*" sample_models/read_digits.py'
        " sample_models/five.png",
        "The outputs of some layers of a model inside a program.",
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

_OUTPUT = (
    "Folder or file to write. Default: the folder runs/SCRIPT-NUMBER for a training,"
    " SCRIPT.run.safetensors for --capture. The other modes write a JSON file."
)
_WHAT = {
    "choices": (*WATCHED, *RECORDED),
    "help": "What to record. Separate several with commas; with --capture output, input and"
    " their gradients.",
    "shell_default": None,
    "shown_default": f"{','.join(WATCHED)}; with --capture {OUTPUT}",
}


@command(
    "run",
    program,
    options_of(WatchOptions, "layers", "every", "what", what=_WHAT),
    options_of(WatchOptions, "stop_on", "fingerprint", "live"),
    options_of(ProgramOptions, *MODES, "calls", "stop_after", "ops", "attention", "max_bytes"),
    options_of(Interventions, "edits", "grad_edits", "hooks", "hook_kind", "hook_args"),
    options_of(WatchOptions, "output", output={"help": _OUTPUT, "metavar": "PATH"}),
    options_of(ProgramOptions, "force"),
    examples=EXAMPLES,
    main="list capture layer stop-on output",
    shares_work=True,
    also="check edit every trace",
    context_settings={"allow_interspersed_args": False},
    topics="layers notebooks",
)
def run_command(
    ctx: click.Context,
    script: str | None,
    args: tuple[str, ...],
    module: bool,
    **values: Any,
) -> Program:
    """Run a program: watch its training, or look into its models.

    The program runs as Python would run it. Without a mode, records a training: statistics of
    activations, gradients, parameters and updates, by layer and step, in a run folder. With --list,
    --capture, --check or --trace, finds the models that any program calls, by the names that they
    have in it, and shows or records their layers as MODEL.LAYER. What it prints goes to standard
    error. The output of the program, its results and its exit status are those of a run without
    hookscope. Exit status: that of the program; 2 for a wrong request.
    """
    if script is None:
        raise RequestError(
            "No module was named." if module else "No script was named.",
            f"Write: hookscope run {'-m mypackage.train' if module else 'train.py'}",
        )
    chosen, interventions, options = read_groups(values)
    console: Console = ctx.obj
    if late := [word for word in args if word.partition("=")[0] in _OWN_OPTIONS]:
        console.note(
            f"{late[0]} is passed to the script: options of hookscope come before the script's name"
        )
    program = Program(script, args, is_module=module)
    session: ProgramSession
    if chosen.mode:
        layers, output = tuple(values["layers"]), values["output"]
        session = ModelSession(chosen, interventions, layers, output, program, quiet=console.quiet)
    else:
        session = RunSession(options, interventions, program, quiet=console.quiet)
    check_program(session.program)
    session.check_output()
    session.watch_from_import()
    return session.program


def read_groups(values: dict[str, Any]) -> tuple[ProgramOptions, Interventions, WatchOptions]:
    """Return the options of the shell as groups; those of a training are left out with a mode."""

    def taken(group: type) -> dict[str, Any]:
        names = [field.name for field in fields(group) if field.name in values]
        return {name: values[name] for name in names}

    options = ProgramOptions(**taken(ProgramOptions))
    given = [name for name, value in values.items() if value not in (None, False, ())]
    check_mode(options.mode, given)
    interventions = Interventions(**taken(Interventions))
    if options.mode:
        resolve_hook_kinds(tuple(interventions.hook_kind), interventions.hook_count, verb="run")
        return options, interventions, WatchOptions(layers=values["layers"])
    check_trainable(interventions)
    watched = {
        name: value for name, value in taken(WatchOptions).items() if value not in (None, ())
    }
    return options, interventions, WatchOptions(**watched)
