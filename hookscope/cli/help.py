"""``hookscope help``: the same as ``--help``, for hands that type it the other way round."""

from __future__ import annotations

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options

EXAMPLES = (
    Example("hookscope help", "The commands."),
    Example("hookscope help capture", "One command and its options."),
)


@command(
    "help",
    click.argument(
        "name",
        metavar="[COMMAND]",
        required=False,
        shell_complete=completion_values.commands,
        help="The command to explain.",
    ),
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def help(ctx: click.Context, name: str | None) -> None:
    """Explain a command, or list the commands."""
    out: Console = ctx.obj
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    text = root.get_help()
    if name is not None:
        _, found, _ = group.resolve_command(root, [name])
        assert found is not None
        text = found.get_help(found.context_class(found, info_name=name, parent=root))
    if out.json:
        out.document({"schema": 1, "command": "help", "about": name or "", "text": text})
    else:
        out.text(text)
