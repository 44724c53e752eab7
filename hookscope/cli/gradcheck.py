"""``hookscope gradcheck``: a backward of one's own against numerical gradients."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import options
from hookscope.cli.command import Example, command, option, together
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.cli.running import running
from hookscope.cli.values import Parsed
from hookscope.cli.values import shape as read_shape

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
    type=Parsed("shape", read_shape),
    help="Shape of an input, such as 2x3; one for each input, in order. Filled with seeded noise.",
)

precision = together(
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
    options.input,
    shapes,
    options.weights,
    options.seed,
    precision,
    everywhere,
    click.pass_context,
    examples=EXAMPLES,
)
def gradcheck(ctx: click.Context, **values: Any) -> None:
    """Compare a backward with numerical gradients.

    MODEL is a module or a custom torch.autograd.Function, FILE.py:NAME. It runs in float64 and eval
    mode; each entry of each input is moved by eps to either side, and each derivative is held
    against the one that backward gives. Exit status: 0 they agree, 1 they part somewhere.
    """
    out: Out = ctx.obj
    from hookscope.cli.request import part_of
    from hookscope.specs import catalog
    from hookscope.specs.command_options import GradcheckOptions

    catalog.check(values["model"])
    part_of(GradcheckOptions, values)
    options.announce_model(ctx)
    with running(out, f"Running {values['model']} ..."):
        from hookscope.api.gradcheck import gradcheck as verb

        result = verb(**values)
    if out.json:
        from hookscope.views.text.json import document

        out.document(document("gradcheck", result.to_json()))
    else:
        from hookscope.views.text.gradcheck import gradcheck_lines

        out.result(gradcheck_lines(result, out.width, out.ascii))
    if not result.ok:
        ctx.exit(DIFFERS)
