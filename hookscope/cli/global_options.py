"""Options of every command, before or after it: the global ones, and those of tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli.commands import GLOBAL, Command, combine, flag, option
from hookscope.cli.console import Console
from hookscope.cli.param_types import IntRange
from hookscope.cli.settings import read_settings
from hookscope.errors import RequestError

_GIVEN = f"{__name__}.given"

SECTION = "Table"
MAX_DIGITS = 17  # of a float64


def _present(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Set an attribute of the console, unless a stronger source has set it."""
    if ctx.resilient_parsing:
        return
    console = ctx.ensure_object(Console)
    sources: dict[str, ParameterSource] = ctx.meta.setdefault(_GIVEN, {})
    source = ctx.get_parameter_source(param.name) or ParameterSource.DEFAULT
    before = sources.get(param.name, ParameterSource.DEFAULT)
    both_typed = source is before is ParameterSource.COMMANDLINE
    if source <= before:
        # -v before the command and -v after it are -vv.
        add = console.verbose if param.name == "verbose" and both_typed else 0
        setattr(console, param.name, value + add if add else value)
        sources[param.name] = source


def _global(decorator: Callable[..., Any], *names: str, **more: Any) -> Callable[[Any], Any]:
    more = {"expose_value": False, "callback": _present, "section": GLOBAL} | more
    more |= {"show_default": False}
    made: Callable[[Any], Any] = decorator(*names, **more)
    return made


global_options = combine(
    _global(flag, "quiet", "-q", shared_env="HOOKSCOPE_QUIET", help="Suppress notes."),
    _global(
        option,
        "--verbose",
        "-v",
        shared_env="HOOKSCOPE_VERBOSE",
        count=True,
        default=0,
        help="Show steps and timings; -vv also shows tracebacks.",
    ),
    _global(
        flag, "json", shared_env="HOOKSCOPE_JSON", help="Print the result as one JSON document."
    ),
    _global(
        flag,
        "color",
        shared_env="HOOKSCOPE_COLOR",
        default=None,
        help="Force or disable colour. Default: colour on a terminal.",
    ),
    _global(
        option,
        "--config",
        shared_env="HOOKSCOPE_CONFIG",
        is_eager=True,
        type=click.Path(),
        metavar="FILE",
        callback=read_settings,
        help="Read settings from FILE only.",
    ),
    _global(
        option,
        "--no-config",
        shared_env="HOOKSCOPE_NO_CONFIG",
        is_flag=True,
        is_eager=True,
        default=False,
        callback=read_settings,
        help="Ignore settings files.",
    ),
)


def command(
    name: str, *decorators: Callable[[Any], Any], **more: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Make a function of a context a :class:`Command` with these options, then the global ones."""

    def make(function: Callable[..., Any]) -> Command:
        help_text = inspect.cleandoc(function.__doc__ or "")
        declared = combine(*decorators, global_options, click.pass_context)(function)
        return click.command(name, cls=Command, help=help_text, **more)(declared)

    return make


def _set_on_console(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if not ctx.resilient_parsing:
        setattr(ctx.ensure_object(Console), param.name or "", value)


def _present_sort(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Check the column before the model runs; which columns a file's table has, the file says."""
    if value is not None and not ctx.resilient_parsing:
        from hookscope.views.display import result_columns
        from hookscope.views.text.table import find_column

        assert isinstance(ctx.command, Command)
        if columns := result_columns(ctx.command.views):
            try:
                find_column(columns, value)
            except RequestError as error:
                raise click.BadParameter(str(error), ctx, param) from error
    _set_on_console(ctx, param, value)


format_options = combine(
    flag(
        "csv",
        section=SECTION,
        expose_value=False,
        callback=_set_on_console,
        help="Print the table as CSV, with all columns.",
    ),
    flag(
        "markdown",
        section=SECTION,
        expose_value=False,
        callback=_set_on_console,
        help="Print tables and sentences as Markdown.",
    ),
)

row_options = combine(
    option(
        "--sort",
        section=SECTION,
        metavar="COLUMN",
        expose_value=False,
        callback=_present_sort,
        help="Sort rows: numbers from the largest, text from A to Z; -COLUMN reverses.",
    ),
    option(
        "--top",
        section=SECTION,
        type=IntRange(min=1),
        metavar="N",
        expose_value=False,
        callback=_set_on_console,
        help="Print only the first N rows.",
    ),
    format_options,
)

_precision_option = option(
    "--precision",
    section=SECTION,
    type=IntRange(min=1, max=MAX_DIGITS),
    metavar="N",
    expose_value=False,
    callback=_set_on_console,
    help="Significant digits of values. Default: 6 in a pipe, 9 as CSV, 4 on a terminal.",
)

table_options = combine(row_options, _precision_option)
