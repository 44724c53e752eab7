"""The options of interventions: edits of activations and gradients, and user hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hookscope.cli import completion_values, options
from hookscope.cli.commands import combine, flag, option
from hookscope.specs.choices import FORWARD, HOOK_KINDS_OF

_edits = option(
    "--edit",
    "edits",
    section="Edits",
    multiple=True,
    metavar="GLOB=OP",
    shell_complete=completion_values.layers,
    help="Change a layer's output on its way, such as 'layer1.*=scale:0.5', 'conv1[3,7-9]=zero',"
    " 'relu:2=...' (one call) or 'input:GLOB=...'. Repeatable, applied in order.",
)

_grad_edits = option(
    "--grad-edit",
    "grad_edits",
    section="Edits",
    multiple=True,
    metavar="GLOB=OP",
    shell_complete=completion_values.layers,
    help="Change the gradient at a layer's output, and so all that flows further back."
    " Repeatable, applied in order.",
)

_compare = flag(
    "compare",
    section="Edits",
    help="Record a run without the edits and hooks too, and show how far every later layer moved.",
)


def help_notes(*names: str) -> dict[str, list[tuple[str, str]]]:
    """Return the operations of ``--edit`` or ``--grad-edit`` for the help."""
    from hookscope.specs.edit import GRADIENT_OPERATIONS, VALUE_OPERATIONS

    tables = {
        "--edit": ("x: activation", VALUE_OPERATIONS),
        "--grad-edit": ("g: gradient", GRADIENT_OPERATIONS),
    }
    notes = {}
    for name in names:
        symbol, table = tables[name]
        rows = [(entry.form, entry.formula) for entry in table.values()]
        notes[f"Operations of {name} ({symbol})"] = rows
    return notes


def _user_hooks(command: str) -> Callable[[Any], Any]:
    kinds = HOOK_KINDS_OF[command]
    return combine(
        option(
            "--hook",
            "hooks",
            section="Own hooks",
            multiple=True,
            metavar="[GLOB=]HOOK",
            help="A function of your own, FILE.py:FUNCTION or package.module:FUNCTION, run at the"
            " layers of GLOB, or at the chosen ones. What it returns replaces the value; None"
            " leaves it. Repeatable.",
        ),
        option(
            "--hook-kind",
            section="Own hooks",
            multiple=True,
            type=click.Choice(kinds),
            metavar="KIND",
            help=f"When it runs, {FORWARD} if not given: {', '.join(kinds)}. One for all hooks, or"
            " one for each; docs/own-hooks.md has their signatures.",
        ),
        option(
            "--hook-arg",
            "hook_args",
            section="Own hooks",
            multiple=True,
            metavar="KEY=VALUE",
            callback=options.read_assignments,
            help="A further argument for hooks that have a parameter KEY, of the type it is"
            " annotated with. Repeatable.",
        ),
    )


def for_command(command: str) -> Callable[[Any], Any]:
    """Return the options of ``command``. Gradients are edited only with a backward pass."""
    edits = (_edits,) if command == "capture" else (_edits, _grad_edits)
    return combine(*edits, _compare, _user_hooks(command))
