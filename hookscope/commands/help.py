"""``hookscope help``: the help of a command, as ``--help`` prints it, or a topic."""

from __future__ import annotations

import click

from hookscope.cli import completion_values
from hookscope.cli.command_group import suggest_command
from hookscope.cli.commands import Example, commands_of
from hookscope.cli.console import Console
from hookscope.cli.global_options import command
from hookscope.cli.help_topics import TOPICS, topic_text
from hookscope.cli.other_words import command_for

EXAMPLES = (
    Example("hookscope help", "All commands and topics."),
    Example("hookscope help capture", "All options of a command."),
    Example("hookscope help edits", "A topic: the operations of --edit."),
)


@command(
    "help",
    click.argument(
        "name",
        metavar="[COMMAND|TOPIC]",
        required=False,
        shell_complete=completion_values.help_names,
        help="A command, or a topic that 'hookscope help' lists.",
    ),
    examples=EXAMPLES,
)
def help_command(ctx: click.Context, name: str | None) -> None:
    """Explain a command or a topic.

    Without a name, lists all commands and topics.
    """
    console: Console = ctx.obj
    text = _text_of(ctx.find_root(), name)
    if console.json:
        console.document({"schema": 1, "command": "help", "about": name or "", "text": text})
    else:
        console.text(text)


def _text_of(root: click.Context, name: str | None) -> str:
    commands = commands_of(root)
    if name is None:
        return root.get_help()
    if name in TOPICS:
        return topic_text(name, root)
    explained = commands.get(name)
    if explained is None:
        near = suggest_command(name, [*commands, *TOPICS])
        line = command_for(name)
        more = f" It is explained by: hookscope help {line.split()[0]}" if line else ""
        raise click.UsageError(f"There is no command or topic {name!r}. {near}{more}".strip(), root)
    return explained.get_help(explained.context_class(explained, info_name=name, parent=root))
