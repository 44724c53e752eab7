"""The classes of commands and options: environment variables, sections of the help, examples.

They extend Click's. An option belongs to a section of the help, has the environment variable
``HOOKSCOPE_<COMMAND>_<OPTION>``, and its errors name the file or variable that a wrong value came
from.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from hookscope.cli.console import Console
from hookscope.errors import HookscopeError
from hookscope.files.escapes import visible
from hookscope.specs.suggestions import near

NARROW = 60  # columns; below, the meaning of a term has lines of its own


class Formatter(click.HelpFormatter):
    """Click's formatter, with a layout for narrow terminals.

    A term is as wide as its longest choice, so in two columns the meaning would get one word a
    line.
    """

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write rows of a term and its meaning."""
        if self.width >= NARROW:
            super().write_dl(list(rows), col_max, col_spacing)
            return
        for term, meaning in rows:
            self._write_lines(term, "", self.indent_increment * 2)
            self._write_lines(meaning, " " * self.indent_increment, self.indent_increment)

    def write_heading(self, heading: str) -> None:
        """Write a section's title."""
        if self.width >= NARROW:
            super().write_heading(heading)
        else:
            self._write_lines(f"{heading}:", "", self.indent_increment)

    def _write_lines(self, text: str, first: str, hang: int) -> None:
        margin = " " * self.current_indent
        lines = textwrap.wrap(
            # [cpu|cuda|auto] may break after a bar: \0 marks the place, and is removed afterwards.
            re.sub(r"\|(?=\S)", "|\0 ", text),
            max(self.width, 20),
            initial_indent=margin + first,
            subsequent_indent=margin + " " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self.write("".join(f"{line}\n" for line in lines).replace("\0 ", "").replace("\0", ""))


class Context(click.Context):
    """A context whose help is written by :class:`Formatter`."""

    formatter_class = Formatter


F = TypeVar("F", bound=Callable[..., Any])

MAX_WIDTH = 100

GLOBAL = "Global options"

USAGE = 2  # the exit status of a wrong request

_WRITTEN = f"{__name__}.written"


class Example(NamedTuple):
    """A command line and what it shows; used by the help, the reference page and a test."""

    line: str
    shows: str


class Option(click.Option):
    """An option in a section of the help; ``shared_env`` is a variable for all commands."""

    def __init__(self, *args: Any, section: str = "Options", shared_env: str = "", **more: Any):
        super().__init__(*args, **more)
        self.section = section
        self.shared_env = shared_env

    @property
    def key(self) -> str:
        """The long flag without dashes, which is the key in a settings file."""
        return next(opt for opt in self.opts if opt.startswith("--"))[2:]

    def name_environment(self, command: str) -> None:
        """Set the variables of the option: that of the command, then the shared one."""
        own = "_".join(("HOOKSCOPE", command, self.key)).upper().replace("-", "_")
        self.envvar = [own, self.shared_env] if self.shared_env else [own]

    def variable(self, ctx: click.Context) -> str:
        """Return the environment variable that sets the value, or an empty string."""
        names = [self.envvar] if isinstance(self.envvar, str) else self.envvar or ()
        return next((name for name in names if os.environ.get(name)), "")

    def origin(self, ctx: click.Context, source: ParameterSource | None) -> str:
        """Return the variable or the file that set the value, or an empty string."""
        if source is ParameterSource.ENVIRONMENT:
            return self.variable(ctx)
        if source is ParameterSource.DEFAULT_MAP:
            from hookscope.cli.settings import settings_of

            return str(settings_of(ctx).of(ctx.command.name or "")[self.key].path)
        return ""

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Find the value, and store it as it was written."""
        value, source = super().consume_value(ctx, opts)
        ctx.meta.setdefault(_WRITTEN, {})[self.name] = value
        return value, source

    def raw_value(self, ctx: click.Context) -> Any:
        """Return the value as it was written, before conversion."""
        return ctx.meta[_WRITTEN][self.name]

    def was_chosen(self, ctx: click.Context) -> bool:
        """Whether a flag, a variable or a file set the value."""
        return ctx.get_parameter_source(self.name) not in (None, ParameterSource.DEFAULT)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the option, and the source of its wrong value."""
        hint = f"--{self.key}"
        origin = ctx and self.origin(ctx, ctx.get_parameter_source(self.name))
        return f"{hint} (from {origin})" if origin else hint

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the row of the help; a switch is one term."""
        record = super().get_help_record(ctx)
        if record is None or not self.secondary_opts:
            return record
        # --[no-]strict: both flags written out would double the width of the column.
        short = [f"{opt}, " for opt in self.opts if not opt.startswith("--")]
        return "".join(short) + f"--[no-]{self.key}", record[1]


class Command(click.Command):
    """A command whose help has sections and ends with examples.

    Args:
        examples: command lines that run in a clone of the project.
        notes: further sections of the help: titles with rows of terms and meanings.
    """

    context_class = Context

    def __init__(
        self,
        *args: Any,
        examples: tuple[Example, ...] = (),
        notes: Callable[[], dict[str, list[tuple[str, str]]]] = dict,
        **more: Any,
    ):
        super().__init__(*args, **more)
        self.examples = examples
        self.notes = notes
        for option in self.options():
            option.name_environment(self.name or "")

    def options(self) -> list[Option]:
        """Return the options that can be set by flag, variable or file."""
        return [param for param in self.params if isinstance(param, Option)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; for completion, without a last option that has no value yet.

        Click would drop all arguments before it too, and layers cannot be completed without the
        model.
        """
        waiting = {o for p in self.options() if not (p.is_flag or p.count) for o in p.opts}
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args[:-1] if args[-1:] and args[-1] in waiting else args)
        with ctx.ensure_object(Console).defer_notes():
            return self._parse(ctx, args)

    def _parse(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _explained(error, ctx) from None
        except HookscopeError as error:
            self._add_origins(error, ctx)
            raise
        from hookscope.cli.settings import check_refused

        check_refused(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of the request name the sources of its values."""
        try:
            return super().invoke(ctx)
        except HookscopeError as error:
            self._add_origins(error, ctx)
            raise

    def _add_origins(self, error: HookscopeError, ctx: click.Context) -> None:
        """Add to the hint which variables and files set options."""
        origins = [
            f"--{option.key} is set by {origin}."
            for option in self.options()
            if (option.expose_value or option.key == "config")
            and (origin := option.origin(ctx, ctx.get_parameter_source(option.name)))
        ]
        if origins and error.exit_code == USAGE:
            error.hint = visible(" ".join([error.hint, *origins]).strip())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section, and the further sections of the command."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", GLOBAL), []).append(record)
        for title, records in (sections | self.notes()).items():
            with formatter.section(title):
                formatter.write_dl(records)
                if title == GLOBAL:
                    formatter.write_paragraph()
                    formatter.write_text(
                        f"As environment variables: HOOKSCOPE_{(self.name or '').upper()}_<OPTION>,"
                        " or HOOKSCOPE_<OPTION> for every command."
                    )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if not self.examples:
            return
        with formatter.section("Examples"):
            for line, shows in self.examples:
                # Never wrapped: an example is copied from the terminal.
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
                with formatter.indentation():
                    formatter.write_text(shows)


class Commands(Mapping[str, Command]):
    """Commands by name, each imported from the file of its name when it is first used.

    Args:
        package: the package of the files.
        shorts: the summary of each command in the group's help, in order.
    """

    def __init__(self, package: str, shorts: dict[str, str]):
        self.package = package
        self.shorts = shorts

    def __getitem__(self, name: str) -> Command:
        if name not in self.shorts:
            raise KeyError(name)
        imported = getattr(importlib.import_module(f"{self.package}.{name}"), name)
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _explained(error, ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands.shorts.items()))


def _explained(error: click.NoSuchOption, ctx: click.Context) -> click.UsageError:
    """Return an error that suggests similar options, or the commands that have the option."""
    word = error.option_name
    here = near(word.lstrip("-"), [name for name in _flags(ctx.command) if len(name) > 1])
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    owners = [name for name, other in group.commands.items() if word in _flags(other).values()]
    message = f"No such option {word!r}."
    if owners:
        message += f" {word} belongs to {_either([f'hookscope {name}' for name in owners])}."
    elif here:
        message += f" Did you mean {_either([f'--{name}' for name in here])}?"
    return click.UsageError(message, ctx)


def _flags(command: click.Command) -> dict[str, str]:
    """Return the flags of a command by their names without dashes."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
    return {flag.lstrip("-"): flag for flag in flags}


def _either(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def command(
    name: str, *decorators: Callable[[Any], Any], **more: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a :class:`Command` with the options of ``decorators``, in that order."""

    def make(function: Callable[..., Any]) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        help_text = inspect.cleandoc(function.__doc__ or "")
        return click.command(name, cls=Command, help=help_text, **more)(function)

    return make


def option(*names: str, **more: Any) -> Callable[[F], F]:
    """Declare an option with a default, shown in the help with its variables."""
    more.setdefault("default", () if more.get("multiple") else None)
    more = {"show_default": True, "show_envvar": True} | more
    return click.option(*names, cls=Option, **more)


def flag(name: str, *short: str, **more: Any) -> Callable[[F], F]:
    """Declare a switch with a negative form, which overrides a variable or a file."""
    more = {"default": False, "show_default": False} | more
    return option(f"--{name}/--no-{name}", *short, is_flag=True, **more)


def combine(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Combine several decorators into one, in the order of the help."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate
