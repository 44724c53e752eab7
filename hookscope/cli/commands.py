"""The classes of commands and options: environment variables, sections of the help, examples."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from hookscope.cli.console import Console
from hookscope.cli.help_layout import (
    Context,
    Formatter,
    Rows,
    first_sentence,
    short_help,
    short_help_option,
)
from hookscope.cli.other_words import check_arguments, option_for
from hookscope.errors import USAGE, HookscopeError, SettingsError
from hookscope.escapes import visible
from hookscope.files.suggestions import near

F = TypeVar("F", bound=Callable[..., Any])

GLOBAL = "Global options"

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

    def name_command(self, command: str) -> None:
        """Set the environment variables of the option, and write the command into its help."""
        self.help = (self.help or "").replace(".COMMAND.", f".{command}.") or None
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

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what the help adds in brackets: the default, and no range of values."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # Click puts it into parentheses
        return extra

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the row of the help; a switch is one term."""
        record = super().get_help_record(ctx)
        if record is None or not self.secondary_opts:
            return record
        if self.secondary_opts != [f"--no-{self.key}"]:
            return record
        # --[no-]strict: both flags written out would double the width of the column.
        short = [f"{opt}, " for opt in self.opts if not opt.startswith("--")]
        return "".join(short) + f"--[no-]{self.key}", record[1]


class Command(click.Command):
    """A command whose help has sections and ends with examples."""

    context_class = Context

    def __init__(
        self,
        *args: Any,
        examples: tuple[Example, ...] = (),
        main: str = "",
        also: str = "",
        notes: Mapping[str, Rows] | None = None,
        topics: str = "",
        views: str = "",
        shares_work: bool = False,
        **more: Any,
    ):
        super().__init__(*args, **more)
        self.examples = examples
        self.main_options = main.split()
        self.also = also.split()  # further options that the short help names
        self.notes = dict(notes or {})
        self.topics = topics.split()
        self.views = views.split()  # of the tables whose columns --sort checks before the run
        self.shares_work = shares_work  # whether each process of torchrun does a part of it
        self.short_help_option = short_help_option(self.short_help_text)
        for option in self.options():
            option.name_command(self.name or "")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, ``-h`` and ``--help`` included."""
        return [*super().get_params(ctx), self.short_help_option]

    def short_help_text(self, ctx: click.Context) -> str:
        """Return the help of one screen: summary, examples, arguments and the main options."""
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        shown = [
            option for key in self.main_options for option in self.options() if option.key == key
        ]
        records = [param.get_help_record(ctx) for param in (*arguments, *shown)]
        rows = [(record[0], first_sentence(record[1])) for record in records if record]
        parts = ["arguments"] * bool(arguments) + ["main options"] * bool(shown)
        title = " and ".join(parts).capitalize()
        others = [f"--{option.key}" for option in self.options() if option.key in self.also]
        more = f"Also {', '.join(others)}.\n" if others else ""
        more += f"'{ctx.command_path} --help' shows all options."
        return short_help(ctx, self.examples, title, rows, more)

    def options(self) -> list[Option]:
        """Return the options that can be set by flag, variable or file."""
        return [param for param in self.params if isinstance(param, Option)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; for completion, without a last option that has no value yet.

        Click would drop all before it too, and layers cannot be completed without the model.
        """
        waiting = {o for p in self.options() if not (p.is_flag or p.count) for o in p.opts}
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args[:-1] if args[-1:] and args[-1] in waiting else args)
        with ctx.ensure_object(Console).defer_notes():
            return self._parse(ctx, args)

    def _parse(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # they are checked here, for a better message
        typed = list(args)  # Click's parser consumes them
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise explain_unknown_option(error, ctx, typed) from None
        except HookscopeError as error:
            self._add_origins(error, ctx)
            raise
        if ctx.allow_interspersed_args:  # else they are those of the user's program
            check_arguments(ctx, typed, rest)
        check_refused(ctx)
        formats = [name for name in ("csv", "markdown", "json") if getattr(ctx.obj, name)]
        if len(formats) > 1:
            raise click.UsageError(f"--{formats[0]} and --{formats[1]} cannot be combined.", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of the request name the sources of its values.

        Of several processes of torchrun, only rank 0 runs a command that does not share its work.
        """
        from hookscope.stores.runs.run_folder import launch_in

        is_launched = not self.shares_work and launch_in(os.environ) is not None
        if is_launched and (rank := int(os.environ["RANK"])):
            ctx.obj.note(f"rank {rank} leaves this to rank 0: {self.name} does not share its work")
            return None
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
        for title, records in (sections | self.notes).items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the help topics, and how to set options elsewhere."""
        assert isinstance(formatter, Formatter)
        if self.examples:
            formatter.write_examples(self.examples)
        formatter.write_paragraph()
        if self.topics:
            formatter.write_text(f"Help topics (hookscope help TOPIC): {', '.join(self.topics)}.")
        prefix = f"HOOKSCOPE_{(self.name or '').upper()}_"
        formatter.write_text(
            f"Options can also be set by environment variables, {prefix}<OPTION>, and in"
            " hookscope.toml: see 'hookscope help settings'."
        )


def explain_unknown_option(
    error: click.NoSuchOption, ctx: click.Context, typed: Sequence[str] = ()
) -> click.UsageError:
    """Return an error that suggests similar options, or the commands that have the option."""
    word = error.option_name
    here = near(word.lstrip("-"), [name for name in _flags(ctx.command) if len(name) > 1])
    owners = [name for name, other in commands_of(ctx).items() if word in _flags(other).values()]
    message = f"No such option {word!r}."
    if meant := option_for(word, _flags(ctx.command).values()):
        message += f" Did you mean {meant}?"
    elif owners:
        message += f" {word} is an option of {_either(owners)}"
        message += f", not of {ctx.command.name}." if ctx.parent else ": put it after the command."
    elif here:
        message += f" Did you mean {_either([f'--{name}' for name in here])}?"
    own = next((word for word in typed if re.fullmatch(r".+\.py:\w+", word)), "")
    if own and not (meant or owners):
        keyword = word.lstrip("-").replace("-", "_")
        message += f" An argument of the model stands in its name: '{own}({keyword}=...)'."
    if not meant and _reads_features(ctx.command):
        message += f" {ctx.command.name} reads a folder that 'hookscope extract' wrote."
    return click.UsageError(message, ctx)


def _reads_features(command: click.Command) -> bool:
    return any(getattr(param, "metavar", None) == "FEATURES" for param in command.params)


def _flags(command: click.Command) -> dict[str, str]:
    """Return the flags of a command by their names without dashes."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
    return {flag.lstrip("-"): flag for flag in flags}


def _either(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def option(*names: str, **more: Any) -> Callable[[F], F]:
    """Declare an option whose default is shown in the help."""
    more.setdefault("default", () if more.get("multiple") else None)
    more = {"show_default": True} | more
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


def commands_of(ctx: click.Context) -> Mapping[str, Command]:
    """Return all commands by name; each is imported when it is read."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    return cast("Mapping[str, Command]", group.commands)


SETTINGS = f"{__name__}.settings"

REFUSED = f"{__name__}.refused"


def settings_of(ctx: click.Context) -> Any:
    """Return the :class:`hookscope.cli.settings_files.Settings` in force."""
    return ctx.meta[SETTINGS]


def check_refused(ctx: click.Context) -> None:
    """Print notes on ignored files; raise if a file sets an effective value that it may not."""
    for path in settings_of(ctx).ignored:
        ctx.obj.note(f"{path} belongs to another user and is ignored; --config {path} reads it")
    for name, refusal in ctx.meta[REFUSED].items():
        if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
            raise SettingsError(refusal.message, refusal.hint)
