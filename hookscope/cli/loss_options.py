"""The options that choose a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import Choice, ChoiceOrFunction, FileName
from hookscope.specs.losses import FORMULAS, LOSS_ALIASES, REDUCTIONS


def _name(default: str) -> Callable[[Any], Any]:
    return option(
        "--loss",
        section="Loss",
        type=ChoiceOrFunction(FORMULAS, LOSS_ALIASES),
        metavar="NAME",
        show_default=default,
        help="Loss, such as ce, kl or mse, or FILE.py:FUNCTION.",
    )


_how = combine(
    option(
        "--target",
        section="Loss",
        default="argmax",
        type=FileName("target"),
        help="Class index, label, argmax, uniform, or tensor file. Write 3,7 for a batch.",
    ),
    option(
        "--reduction",
        section="Loss",
        type=Choice(REDUCTIONS),
        help="Reduction of the loss. Default: that of the loss.",
    ),
    flag(
        "raw",
        section="Loss",
        help="Apply the loss to the output without softmax or sigmoid.",
    ),
)
loss = combine(_name("ce"), _how)
loss_of_any_model = combine(_name("a random direction; ce with --target"), _how)
