"""``hookscope models``: the models that can be given by name."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import Example, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import command, row_options
from hookscope.cli.param_types import Choice
from hookscope.specs import catalog

EXAMPLES = (
    Example("hookscope models", "All models."),
    Example('hookscope models "resnet*"', "Models whose name matches."),
    Example("hookscope models vit", "Models whose name contains a word."),
    Example(
        'hookscope models "timm:*vit_tiny*"', "Models of timm, with the tags of their weights."
    ),
    Example("hookscope models --task segmentation --json", "Models for one task, as JSON."),
)


@command(
    "models",
    click.argument(
        "pattern",
        metavar="[GLOB]",
        default="*",
        shell_complete=completion_values.models,
        help="Pattern of names, such as 'resnet*', or a part of a name. Default: all.",
    ),
    option(
        "--task", section="Options", type=Choice(catalog.TASKS), help="Models for this task only."
    ),
    row_options,
    examples=EXAMPLES,
    main="task json",
    topics="model-specs weights",
)
def models_command(ctx: click.Context, **values: Any) -> None:
    """List the models of torchvision and timm.

    Shows their task, number of parameters, input shape and pretrained weights.
    """
    console: Console = ctx.obj
    matches = catalog.models(**values)
    if console.json:
        from hookscope.views.models import models_document

        console.document(models_document(matches))
    else:
        from hookscope.views.models import models_lines

        console.result(models_lines(matches, console.text_options))
