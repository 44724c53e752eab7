"""``hookscope diff``: two captures, or two models on one input, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values, input_options, options
from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import CommaList, FileName
from hookscope.cli.run_context import running
from hookscope.cli.table_options import table_options
from hookscope.specs.choices import DEVICES, DTYPES

DIFFERENT, FAILED = 1, 2

EXAMPLES = (
    Example(
        "hookscope diff sample_models/digits.py:trained sample_models/digits_scripted.pt",
        "A model and its scripted file, on the input that the first one offers.",
    ),
    Example(
        "hookscope diff sample_models/digits_traced.pt sample_models/digits_exported.pt2"
        " --input sample_models/five.png --json",
        "A traced and an exported file on an image, for a program to read.",
    ),
    Example(
        "hookscope diff resnet18 resnet18 --dtype float32 --dtype float64 --shape 1x3x64x64"
        " --rtol 0.001 --atol 0.001",
        "One model in two precisions; what is given twice is A's and B's.",
    ),
    Example(
        "hookscope diff sample_models/five.safetensors sample_models/five.safetensors"
        ' --layer "conv*"',
        "Two captures, read without torch.",
    ),
)


def _read_each(
    read_name: str,
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], Any]:
    def read(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> Any:
        if not value or ctx.resilient_parsing:
            return None
        from hookscope.specs import model_spec as spec
        from hookscope.specs.diff_request import parse_pairs_for_both

        return parse_pairs_for_both(value, getattr(spec, read_name))

    return read


matching = combine(
    option(
        "--map",
        section="Comparing",
        multiple=True,
        metavar="OLD=NEW",
        callback=options.read_prefixes,
        help="What begins with OLD in A begins with NEW in B. Repeatable.",
    ),
    option(
        "--atol",
        section="Comparing",
        type=float,
        metavar="X",
        help="A difference up to atol + rtol * |A| is none; torch.testing's for the dtype if not"
        " given.",
    ),
    option(
        "--rtol",
        section="Comparing",
        type=float,
        metavar="X",
        help="The relative part of it; torch.testing's for the dtype if not given.",
    ),
    flag("equal-nan", section="Comparing", help="Take NaN in both as equal."),
    flag(
        "strict",
        section="Comparing",
        help="Take a tensor that has no partner as a difference too (exit 1).",
    ),
)

what = option(
    "--what",
    section="Layers",
    type=CommaList("output", "input"),
    help="What to compare of each layer; several with commas between. If not given, outputs of"
    " models, and all that files hold.",
)

models = combine(
    option(
        "--model-arg",
        "model_args",
        section="Model",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_read_each("parse_assignments"),
        help="An argument for the class or factory of a FILE.py model; a KEY that comes twice is"
        " A's and B's. Repeatable.",
    ),
    option(
        "--method",
        section="Model",
        multiple=True,
        metavar="NAME",
        help="Run this method in place of forward.",
    ),
    option(
        "--attn",
        section="Model",
        multiple=True,
        metavar="KIND",
        help="How a hf: model computes attention, such as eager.",
    ),
    options.trust,
)

runs = combine(
    option(
        "--weights",
        section="Run",
        multiple=True,
        type=FileName("weights"),
        shell_complete=completion_values.weights,
        help="random (from the seed, if not given), default, a name, or a .safetensors or .pth"
        " FILE.",
    ),
    option(
        "--rename",
        section="Run",
        multiple=True,
        metavar="OLD=NEW",
        callback=_read_each("parse_prefixes"),
        help="What begins with OLD in the file of weights begins with NEW in the model; an OLD that"
        " comes twice is A's and B's. Repeatable.",
    ),
    options.partial,
    options.seed,
    option(
        "--dtype",
        section="Run",
        multiple=True,
        type=click.Choice(DTYPES),
        metavar="DTYPE",
        help=f"Type of the weights and the input ({', '.join(DTYPES)}); the model's if not given.",
    ),
    option(
        "--device",
        section="Run",
        shared_env="HOOKSCOPE_DEVICE",
        multiple=True,
        type=click.Choice(DEVICES),
        help="Where the models run: cpu if not given; auto takes a GPU if there is one.",
    ),
    options.train,
)


@command(
    "diff",
    click.argument("a", help="A capture, or a model: whatever 'hookscope capture' takes."),
    click.argument("b", help="What is held against it, of the same kind."),
    matching,
    options.layers,
    what,
    models,
    input_options.inputs,
    runs,
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def diff(ctx: click.Context, **values: Any) -> None:
    """Compare two captures, or two models on one input.

    One row for each tensor of A that has a partner in B, in A's order of execution: largest
    absolute and relative difference, cosine, signal-to-noise ratio in decibels, and the entries
    beyond tolerance; then what has no partner. Partners bear the same name, or the one that --map
    makes of it, or follow in the same order with the same module type and shape. Of two models an
    option given once counts for both; --weights, --dtype, --device, --method and --attn given twice
    are A's and B's. Exit status: 0 the same within tolerance, 1 different, 2 trouble.
    """
    console: Console = ctx.obj
    console.failed = FAILED
    from hookscope.specs.diff_request import (
        MODEL_OPTIONS,
        DiffRequest,
        are_captures,
        check_capture_options,
    )

    captures = are_captures(values["a"], values["b"])
    if captures:
        typed = ParameterSource.COMMANDLINE
        check_capture_options([x for x in MODEL_OPTIONS if ctx.get_parameter_source(x) is typed])
        # Settings that hold for all commands, such as a seed, do not concern files.
        values = {name: value for name, value in values.items() if name not in MODEL_OPTIONS}
    DiffRequest(**values)  # for its checks, before torch is imported
    what = f"Comparing {values['a']} with {values['b']} ..."
    with console.status(what) if captures else running(console, what):
        from hookscope.api.diff import diff as api_diff

        result = api_diff(**values)
    console.show(result)
    if not result.same:
        ctx.exit(DIFFERENT)
