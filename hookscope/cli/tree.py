"""``hookscope tree``: the named-module tree of a model."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import candidates, options
from hookscope.cli.command import Example, command
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.cli.running import running

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
    options.shape,
    everywhere,
    click.pass_context,
    examples=EXAMPLES,
)
def tree(ctx: click.Context, **values: Any) -> None:
    """Show the named modules of a model.

    Each line has the name that --layer takes, the type with its arguments, its own and total
    parameters, and whether they are trainable. A shared module stands once, with its other names.
    """
    out: Out = ctx.obj
    from hookscope.specs import catalog

    catalog.check(values["model"])
    options.announce_model(ctx)
    with running(out, f"Reading {values['model']} ..."):
        from hookscope.api.tree import tree as verb

        result = verb(**values)
    complete = len(result.nodes) > 1 and not any(
        values[name] for name in ("layers", "types", "leaves", "depth")
    )
    candidates.remember(
        values["model"], [(node.name, node.type) for node in result.nodes], complete
    )
    if out.json:
        from hookscope.views.text.json import tree_document

        out.document(tree_document(result))
    else:
        from hookscope.views.text.tree import tree_lines

        out.result(tree_lines(result, out.width, out.ascii, sources=out.verbose > 0))
