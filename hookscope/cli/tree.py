"""``hookscope tree``: the named-module tree of a model."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values, input_options, options
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.run_context import running
from hookscope.cli.table_options import row_options

EXAMPLES = (
    Example("hookscope tree resnet18", "Every module, as --layer would take its name."),
    Example(
        "hookscope tree resnet18 --type Conv2d --shapes", "The convolutions and their outputs."
    ),
    Example("hookscope tree vit_h_14 --depth 2", "A large model; no memory is taken for weights."),
    Example("hookscope tree sample_models/digits.py:trained", "A model from a Python file."),
    Example("hookscope tree sample_models/digits_scripted.pt -v", "A file whose Python is lost."),
)


@command(
    "tree",
    options.model,
    options.layers,
    options.shapes,
    input_options.shape,
    row_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def tree(ctx: click.Context, **values: Any) -> None:
    """Show the named modules of a model.

    Each line has the name that --layer takes, the type with its arguments, its own and total
    parameters, and whether they are trainable. A shared module stands once, with its other names.
    """
    console: Console = ctx.obj
    from hookscope.cli.request_builder import build_request

    build_request("tree", values)
    options.note_model_source(ctx)
    with running(console, f"Reading {values['model']} ..."):
        from hookscope.api.tree import tree as api_tree

        result = api_tree(**values)
    complete = len(result.nodes) > 1 and not any(
        values[name] for name in ("layers", "types", "leaves", "depth")
    )
    completion_values.remember_layers(
        values["model"], [(node.name, node.type) for node in result.nodes], complete
    )
    console.show(result)
