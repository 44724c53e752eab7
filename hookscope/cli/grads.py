"""``hookscope grads``: run a model forward and backward and keep the gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli.command import Example, command, flag, option, together
from hookscope.cli.everywhere import everywhere
from hookscope.cli.recording import record
from hookscope.cli.values import FileName
from hookscope.losses.formulas import FORMULAS, REDUCTIONS

EXAMPLES = (
    Example(
        "hookscope grads --loss kl --target 3",
        "How resnet18 would have to change to see class 3.",
    ),
    Example(
        "hookscope grads resnet18 --input img.png --loss logit --layer fc --what output,param",
        "What the highest score depends on.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --loss sum --what output,input,param",
        "A model small enough to check by hand.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained --target 3 --hook"
        " conv2=sample_models/own_hook.py:clip --hook-kind tensor --hook-arg largest=0.01",
        "With the gradient at one layer clipped on its way back.",
    ),
)


def losses() -> dict[str, list[tuple[str, str]]]:
    """The formulas, for the help: x is the output, t the target, y its class."""
    rows = []
    for loss in FORMULAS.values():
        raw = f"; with --raw: {loss.raw_formula}" if loss.raw_formula != loss.formula else ""
        reduction = f" [{loss.reduction}]" if loss.reduction else ""
        rows.append((loss.name, f"{loss.formula}{reduction}{raw}"))
    return {"Losses (x: output, t: target, c: classes, y: the target's class)": rows}


loss = together(
    option(
        "--loss",
        section="Loss",
        default="ce",
        type=click.Choice(list(FORMULAS)),
        metavar="NAME",
        help="What is differentiated; the formulas are below.",
    ),
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


@command(
    "grads",
    options.model,
    loss,
    options.layers,
    options.what("output,param", "output", "input", "param"),
    options.inputs,
    options.hooks,
    options.run,
    options.checks,
    options.output,
    everywhere,
    click.pass_context,
    examples=EXAMPLES,
    notes=losses,
)
def grads(ctx: click.Context, output: str | None, force: bool, **values: Any) -> None:
    """Run a model backward and record the gradients.

    Writes the gradient of a loss at each layer's output, at each parameter and at the model's
    input to a safetensors file, and prints how the gradient flows. A gradient that does not exist
    is named with its reason and is never a zero.
    """
    record(ctx, output, force, values)
