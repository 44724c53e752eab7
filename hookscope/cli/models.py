"""``hookscope models``: the models that can be given by name."""

from __future__ import annotations

from typing import Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options

EXAMPLES = (
    Example("hookscope models", "All of them."),
    Example('hookscope models "resnet*"', "Those whose name matches."),
    Example('hookscope models "timm:*vit_tiny*"', "Names of timm, with the tags of weights."),
    Example("hookscope models --task segmentation --json", "Those for one task, as JSON."),
)
TASKS = ("classification", "detection", "segmentation", "video", "optical flow", "quantized")


@command(
    "models",
    click.argument(
        "pattern",
        metavar="[GLOB]",
        default="*",
        shell_complete=completion_values.models,
        help="Names to list, in the language of --layer; all if not given.",
    ),
    option(
        "--task", section="Options", type=click.Choice(TASKS), help="Only models for this task."
    ),
    global_options,
    click.pass_obj,
    examples=EXAMPLES,
)
def models(console: Console, **values: Any) -> None:
    """List the models that can be named.

    With their task, number of parameters, input and pretrained weights.
    """
    from hookscope.specs import catalog

    matches = catalog.models(**values)
    if console.json:
        from hookscope.views.text.documents import models_document

        console.document(models_document(matches))
    else:
        from hookscope.views.text.models import models_lines

        console.result(models_lines(matches, console.text_options))
