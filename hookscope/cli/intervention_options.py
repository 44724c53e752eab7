"""The options of interventions: edits of activations and gradients, and user hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookscope.cli.declared import options_of
from hookscope.specs.choices import FORWARD, HOOK_KINDS_OF
from hookscope.specs.intervention_spec import Interventions


def for_command(command: str) -> Callable[[Any], Any]:
    """Return the options of ``command``. Gradients are edited only with a backward pass."""
    edits = ("edits",) if command == "capture" else ("edits", "grad_edits")
    kinds = HOOK_KINDS_OF[command]
    text = f"Kind of the hooks: {', '.join(kinds)}. Default: {FORWARD}."
    return options_of(
        Interventions,
        *(*edits, "compare", "hooks", "hook_kind", "hook_args"),
        hook_kind={"choices": kinds, "help": text},
    )
