"""The global options, which are accepted before and after every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli.commands import GLOBAL, combine, flag, option
from hookscope.cli.console import Console
from hookscope.cli.settings import read_settings

_GIVEN = f"{__name__}.given"


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
