"""``hookscope gradcheck``: compare backward with numerical gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import input_options, options
from hookscope.cli.commands import Example, combine, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import ParsedValue
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.value_readers import read_shape

DIFFERS = 1

EXAMPLES = (
    Example(
        "hookscope gradcheck sample_models/doubling.py:DoubleFunction --shape 2x3",
        "A custom autograd function.",
    ),
    Example(
        "hookscope gradcheck sample_models/wrong_backward.py:ScaleFunction --shape 1x3 --shape 3",
        "Two inputs. The error of this function shows only with --shape 2x3 --shape 3.",
    ),
    Example("hookscope gradcheck sample_models/digits_scripted.pt", "A whole model from a file."),
)

shapes = option(
    "--shape",
    section="Input",
    multiple=True,
    type=ParsedValue("shape", read_shape),
    help="Shape of an input, such as 2x3. Repeat for several inputs.",
)

precision = combine(
    option(
        "--eps",
        section="Precision",
        default=1e-6,
        type=float,
        metavar="X",
        help="Step of the numerical derivative.",
    ),
    option(
        "--atol",
        section="Precision",
        default=1e-5,
        type=float,
        metavar="X",
        help="Derivatives match if the difference is <= atol + rtol * |numerical|.",
    ),
    option(
        "--rtol",
        section="Precision",
        default=1e-3,
        type=float,
        metavar="X",
        help="Relative tolerance.",
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
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="shape input model-arg atol rtol eps",
    topics="model-specs inputs weights",
)
def gradcheck(ctx: click.Context, **values: Any) -> None:
    """Compare backward with numerical gradients.

    MODEL is a module or a custom torch.autograd.Function, FILE.py:NAME. It runs in float64 and eval
    mode. Central differences with step --eps at each entry of each input are compared with the
    gradients that backward returns. Exit status: 0 if they match, 1 if not.
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
