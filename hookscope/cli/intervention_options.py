"""The options of interventions: edits of activations and gradients, and user hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookscope.cli import completion_values, options
from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import Choice
from hookscope.specs.choices import FORWARD, HOOK_KIND_ALIASES, HOOK_KINDS_OF

_edits = option(
    "--edit",
    "edits",
    section="Edits",
    multiple=True,
    metavar="GLOB=OP",
    shell_complete=completion_values.layers,
    help="Edit layer outputs, such as 'conv1[3,7]=zero'. Repeatable.",
)

_grad_edits = option(
    "--grad-edit",
    "grad_edits",
    section="Edits",
    multiple=True,
    metavar="GLOB=OP",
    shell_complete=completion_values.layers,
    help="Edit output gradients, such as 'layer4=clip:1e-4'. Repeatable.",
)

_compare = flag(
    "compare",
    section="Edits",
    help="Also run without edits and hooks, and show how much every later layer changes.",
)


def _user_hooks(command: str) -> Callable[[Any], Any]:
    kinds = HOOK_KINDS_OF[command]
    return combine(
        option(
            "--hook",
            "hooks",
            section="Hooks",
            multiple=True,
            metavar="[GLOB=]HOOK",
            help="Run a custom hook, FILE.py:FUNCTION, at these layers. Repeatable.",
        ),
        option(
            "--hook-kind",
            section="Hooks",
            multiple=True,
            type=Choice(kinds, HOOK_KIND_ALIASES),
            metavar="KIND",
            help=f"Kind of the hooks: {', '.join(kinds)}. Default: {FORWARD}.",
        ),
        option(
            "--hook-arg",
            "hook_args",
            section="Hooks",
            multiple=True,
            metavar="KEY=VALUE",
            callback=options.read_assignments,
            help="Extra argument for the hooks that take it. Repeatable.",
        ),
    )


def for_command(command: str) -> Callable[[Any], Any]:
    """Return the options of ``command``. Gradients are edited only with a backward pass."""
    edits = (_edits,) if command == "capture" else (_edits, _grad_edits)
    return combine(*edits, _compare, _user_hooks(command))
