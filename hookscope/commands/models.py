"""``hookscope models``: the models that can be given by name."""

from __future__ import annotations

import re
from typing import Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, row_options
from hookscope.errors import ModelError
from hookscope.specs import catalog, model_spec
from hookscope.specs.catalog import ModelInfo
from hookscope.specs.command_options import ModelsOptions
from hookscope.specs.patterns import compile_pattern
from hookscope.specs.public import public

EXAMPLES = (
    Example("hookscope models", "All models."),
    Example('hookscope models "resnet*"', "Models whose name matches."),
    Example("hookscope models vit", "Models whose name contains a word."),
    Example(
        'hookscope models "timm:*vit_tiny*"', "Models of timm, with the tags of their weights."
    ),
    Example("hookscope models --task segmentation --json", "Models for one task, as JSON."),
)


@public
def models(pattern: str = "*", *, options: ModelsOptions) -> list[ModelInfo]:
    """Return the models of torchvision or timm whose name matches ``pattern``.

    Args:
        pattern: a pattern of names, such as ``resnet*``, or a part of a name.

    Raises:
        ModelError: no model matches, or there is no such task.

    Example:
        >>> import hookscope
        >>> [m.name for m in hookscope.models("resnet{18,34}")]
        ['resnet18', 'resnet34']
    """
    task = options.task
    prefix = f"{model_spec.TIMM}:" if pattern.startswith(f"{model_spec.TIMM}:") else ""
    every = _known_models(model_spec.TIMM if prefix else model_spec.TORCHVISION)
    is_part = not re.search(r"[*?\[{]", pattern) and pattern not in {m.name for m in every}
    part = pattern.removeprefix(prefix).lower()
    matches = compile_pattern(f"{prefix}*{part}*" if is_part else pattern)
    matching = [m for m in every if matches(m.name) and task in (None, m.task)]
    if not matching:
        tasks = ", ".join(sorted({m.task for m in every}))
        raise ModelError(
            f"No model matches {pattern!r}" + (f" with the task {task!r}." if task else "."),
            f"'hookscope models' lists all names. The tasks are {tasks}.",
        )
    return matching


def _known_models(source: str) -> tuple[ModelInfo, ...]:
    """Return the models of the installed torchvision or timm, sorted by name."""
    if source == model_spec.TIMM:
        from hookscope.sources import timm

        return timm.live()
    if catalog.list_is_current():
        return catalog.bundled_models()
    from hookscope.sources import torchvision

    return torchvision.live()


@command(
    "models",
    click.argument(
        "pattern",
        metavar="[GLOB]",
        default="*",
        shell_complete=completion_values.models,
        help="Pattern of names, such as 'resnet*', or a part of a name. Default: all.",
    ),
    options_of(ModelsOptions),
    row_options,
    views="models",
    examples=EXAMPLES,
    main="task json",
    topics="model-specs weights",
)
def models_command(ctx: click.Context, **values: Any) -> None:
    """List the models of torchvision and timm.

    Shows their task, number of parameters, input shape and pretrained weights.
    """
    console: Console = ctx.obj
    matches = models.checked(**values)()
    if console.json:
        from hookscope.views.models import models_document

        console.document(models_document(matches))
    else:
        from hookscope.views.models import models_lines

        console.result(models_lines(matches, console.text_options))
