"""The options that choose a loss, and the formulas for the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import ChoiceOrFunction, FileName
from hookscope.specs.losses import FORMULAS, REDUCTIONS


def help_notes() -> dict[str, list[tuple[str, str]]]:
    """Return the formulas of the losses for the help."""
    rows = []
    for loss in FORMULAS.values():
        raw = f"; with --raw: {loss.raw_formula}" if loss.raw_formula != loss.formula else ""
        reduction = f" [{loss.reduction}]" if loss.reduction else ""
        rows.append((loss.name, f"{loss.formula}{reduction}{raw}"))
    return {"Losses (x: output, t: target, c: classes, y: the target's class)": rows}


def _name(default: str) -> Callable[[Any], Any]:
    return option(
        "--loss",
        section="Loss",
        type=ChoiceOrFunction(list(FORMULAS)),
        metavar="NAME",
        show_default=default,
        help="The loss: a name of those below, or FILE.py:FUNCTION for a function of"
        " your own, of the output, of output and target, or of output, target, input by name.",
    )


_how = combine(
    option(
        "--target",
        section="Loss",
        default="argmax",
        type=FileName("target"),
        help="A class index, a list such as 3,7 for a batch, a label name, argmax, uniform, or a"
        " tensor FILE (.npy, .safetensors, .pt).",
    ),
    option(
        "--reduction",
        section="Loss",
        type=click.Choice(REDUCTIONS),
        help="How the terms become one number; the loss's own way if not given.",
    ),
    flag(
        "raw",
        section="Loss",
        help="Put the loss straight on the model's output, without softmax or sigmoid.",
    ),
)
loss = combine(_name("ce"), _how)
loss_of_any_model = combine(_name("a random direction, or ce with --target"), _how)
