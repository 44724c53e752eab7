"""Options made from the fields of groups, whose descriptions are their only declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.commands import combine, flag, option
from hookscope.cli.param_types import (
    Choice,
    CommaList,
    FileName,
    InputName,
    IntRange,
    OpenChoice,
    ParsedValue,
)
from hookscope.specs.settings import Setting, settings_of

if TYPE_CHECKING:
    from hookscope.specs.input_spec import InputSpec

_CHECKED_FILES = 64  # of a folder; a few show whether they are what their names say

Decorator = Callable[[Any], Any]


def one_batch(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[InputSpec] | None:
    """Parse the values of --input as one batch, and check what their files are."""
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.cli.run_context import show_logs
    from hookscope.errors import InputError
    from hookscope.files.text_sources import needs_dataset
    from hookscope.specs.input_spec import check_file_type, parse_inputs

    if listing := next(filter(needs_dataset, value), None):
        raise InputError(
            f"{listing!r} lists many inputs, which only 'hookscope extract' reads.",
            "Use that command, or repeat --input for each.",
        )
    show_logs(ctx.obj)  # prints what was skipped in folders
    parsed = parse_inputs(value)
    for input_spec in parsed[:_CHECKED_FILES]:
        check_file_type(input_spec)
    return parsed


def one_layer(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> str | None:
    """Return the one layer. Other commands take several, so a second one is an error here."""
    from hookscope.errors import RequestError

    if len(names) > 1:
        raise RequestError(
            f"--layer is given {len(names)} times: {', '.join(names)}.",
            "A map is computed at one layer. Run the command once for each.",
        )
    return names[0] if names else None


_CALLBACKS: dict[str, Callable[..., Any]] = {"one_batch": one_batch, "one_layer": one_layer}


def options_of(group: type, *names: str, **changes: Mapping[str, Any]) -> Decorator:
    """Return the options of the named fields of a group, or of all, with changed descriptions."""
    described = dict(settings_of(group))
    return combine(
        *(
            _option(group, name, replace(described[name], **changes.get(name, {})))
            for name in names or described
            if described[name].of_shell
        )
    )


def _option(group: type, name: str, about: Setting) -> Decorator:
    [field] = (field for field in fields(group) if field.name == name)
    default = field.default if about.shell_default is MISSING else about.shell_default
    key = name.replace("_", "-")
    more: dict[str, Any] = {"section": about.section or group.section, "help": about.help}  # type: ignore[attr-defined]
    if not about.in_files:
        more["callback"] = refuse_from_file
    if isinstance(default, bool) or str(field.type).startswith("bool"):
        if not about.negative:
            return option(f"--{key}", *about.flags, is_flag=True, default=default, **more)
        if isinstance(about.negative, str):
            return option(f"--{key}/--{about.negative}", is_flag=True, default=default, **more)
        return flag(key, *about.flags, default=default, **more)
    repeated = about.collect is not None or (about.many and not about.commas)
    more["type"] = _type(str(field.type), about)
    more |= {"multiple": True} if repeated else {"default": default}
    more |= {"metavar": about.metavar} if about.metavar else {}
    more |= {"shared_env": about.shared} if about.shared else {}
    more |= {"show_default": about.shown_default} if about.shown_default else {}
    if about.complete:
        more["shell_complete"] = getattr(completion_values, about.complete)
    if about.callback:
        more["callback"] = _CALLBACKS[about.callback]
    elif about.collect is not None:
        more["callback"] = collected(about.collect)
    flags = about.flags or (f"--{key}",)
    return option(*flags, name, **more)


def _type(annotation: str, about: Setting) -> Any:
    """Return the type of the value for Click, or None for any text."""
    if about.commas:
        return CommaList(*about.choices, aliases=about.aliases)
    if about.choices:
        if about.also is not None:
            return OpenChoice(about, about.also)
        return Choice(about.choices, about.aliases, about.synonyms)
    if about.parse is not None:
        return ParsedValue(about.kind, about.parse)
    if about.file:
        return InputName(about.file) if about.file == "spec" else FileName(about.file)
    if about.minimum is not None:
        return IntRange(about.minimum, about.maximum)
    return {"int": int, "float": float}.get(annotation.removesuffix(" | None"))


def collected(collect: Callable[[tuple[str, ...]], Any]) -> Callable[..., Any]:
    """Return a callback that reads all values of a repeated option at once."""

    def callback(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> Any:
        if not value or ctx.resilient_parsing:
            return None
        try:
            return collect(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def refuse_from_file(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """Refuse a value from a settings file, which may come with the file that it is about."""
    if value and ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT_MAP:
        raise click.UsageError(
            f"{param.name} cannot be set in a settings file. Type --{param.name}.", ctx
        )
    return value
