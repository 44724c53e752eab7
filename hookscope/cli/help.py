"""``hookscope help``: the same as ``--help``."""

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
    console: Console = ctx.obj
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    text = root.get_help()
    if name is not None:
        _, explained, _ = group.resolve_command(root, [name])
        assert explained is not None
        text = explained.get_help(explained.context_class(explained, info_name=name, parent=root))
    if console.json:
        console.document({"schema": 1, "command": "help", "about": name or "", "text": text})
    else:
        console.text(text)
