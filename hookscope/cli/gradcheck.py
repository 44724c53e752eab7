"""``hookscope gradcheck``: compare backward with numerical gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli import options as input_options
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.command_options import GradcheckOptions

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


@command(
    "gradcheck",
    options.model,
    input_options.input,
    options_of(GradcheckOptions, "shape"),
    options.weights,
    options.seed,
    options_of(GradcheckOptions, "eps", "atol", "rtol"),
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
