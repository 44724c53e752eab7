"""``hookscope gradcheck``: compare a backward with numerical gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import ParsedValue, read_shape
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option

DIFFERS = 1

EXAMPLES = (
    Example(
        "hookscope gradcheck sample_models/doubling.py:DoubleFunction --shape 2x3",
        "A custom autograd function.",
    ),
    Example(
        "hookscope gradcheck sample_models/wrong_backward.py:ScaleFunction --shape 1x3 --shape 3",
        "One of two inputs. It is right for a batch of one; --shape 2x3 shows that it is wrong.",
    ),
    Example("hookscope gradcheck sample_models/digits_scripted.pt", "A whole model from a file."),
)

shapes = option(
    "--shape",
    section="Input",
    multiple=True,
    type=ParsedValue("shape", read_shape),
    help="Shape of an input, such as 2x3; one for each input, in order. Filled with seeded noise.",
)

precision = combine(
    option(
        "--eps",
        section="Precision",
        default=1e-6,
        type=float,
        metavar="X",
        help="How far an input is moved to either side.",
    ),
    option(
        "--atol",
        section="Precision",
        default=1e-5,
        type=float,
        metavar="X",
        help="A difference up to atol + rtol * |numerical| is none.",
    ),
    option(
        "--rtol",
        section="Precision",
        default=1e-3,
        type=float,
        metavar="X",
        help="The relative part of it.",
    ),
)


@command(
    "gradcheck",
    options.model,
    input_options.input,
    shapes,
    options.weights,
    options.seed,
    precision,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def gradcheck(ctx: click.Context, **values: Any) -> None:
    """Compare a backward with numerical gradients.

    MODEL is a module or a custom torch.autograd.Function, FILE.py:NAME. It runs in float64 and eval
    mode; each entry of each input is moved by eps to either side, and each derivative is held
    against the one that backward gives. Exit status: 0 they agree, 1 they part somewhere.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    build_request("gradcheck", values)
    options.note_model_source(ctx)
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.gradcheck import gradcheck as api_gradcheck

        result = api_gradcheck(**values)
    console.show(result)
    if not result.ok:
        ctx.exit(DIFFERS)
