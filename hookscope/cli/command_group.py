"""The group of commands: each is imported when it is used, and the help lists them in groups."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from hookscope.cli.commands import Command, Example, explain_unknown_option
from hookscope.cli.help_layout import Context, short_help, short_help_option
from hookscope.cli.other_words import command_for
from hookscope.files.suggestions import did_you_mean


def suggest_command(word: str, names: Iterable[str]) -> str:
    """Return ``Did you mean ...?`` for an unknown command, or an empty string."""
    line = command_for(word)
    return f"Did you mean 'hookscope {line}'?" if line else did_you_mean(word, names)


class Commands(Mapping[str, Command]):
    """Commands by name, each imported from the file of its name when it is first used."""

    def __init__(self, package: str, groups: Mapping[str, Mapping[str, str]]):
        self.package = package
        self.groups = groups
        self.shorts = {name: short for group in groups.values() for name, short in group.items()}

    def __getitem__(self, name: str) -> Command:
        if name not in self.shorts:
            raise KeyError(name)
        imported = getattr(importlib.import_module(f"{self.package}.{name}"), f"{name}_command")
        assert isinstance(imported, Command)
        return imported

    def __iter__(self) -> Iterator[str]:
        return iter(self.shorts)

    def __len__(self) -> int:
        return len(self.shorts)


class Group(click.Group):
    """The group of commands."""

    commands: Commands  # type: ignore[assignment]
    command_class = Command
    context_class = Context

    def __init__(
        self,
        *args: Any,
        examples: tuple[Example, ...] = (),
        topics: Mapping[str, str] | None = None,
        **more: Any,
    ):
        super().__init__(*args, **more)
        self.examples = examples
        self.topics = dict(topics or {})
        self.short_help_option = short_help_option(self.short_help_text)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, ``-h`` and ``--help`` included."""
        return [*super().get_params(ctx), self.short_help_option]

    def short_help_text(self, ctx: click.Context) -> str:
        """Return the help of one screen: summary, examples and the names of the commands."""
        rows = [(title, ", ".join(group)) for title, group in self.commands.groups.items()]
        more = (
            "'hookscope COMMAND -h' explains a command. 'hookscope --help' describes all commands,"
            " global options and help topics."
        )
        return short_help(ctx, self.examples, "Commands", rows, more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before the command; without any, print the short help."""
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError as error:
            error.message = self.short_help_text(ctx)  # type: ignore[misc] # else the long help
            raise
        except click.NoSuchOption as error:
            raise explain_unknown_option(error, ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error about an unknown one suggests what may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            word = error.command_name
            message = f"{error.message} {suggest_command(word, self.commands)}"
            raise click.UsageError(message.strip(), ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, without importing them, then the options."""
        for title, group in self.commands.groups.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))
        click.Command.format_options(self, ctx, formatter)
        with formatter.section("Help topics (hookscope help TOPIC)"):
            formatter.write_dl(list(self.topics.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how options are set elsewhere."""
        formatter.write_paragraph()
        formatter.write_text(
            "Most options can also be set by the environment variable HOOKSCOPE_<COMMAND>_<OPTION>,"
            " a global option by HOOKSCOPE_<OPTION>, and both in hookscope.toml: 'hookscope help"
            " settings' names the exceptions."
        )
