"""Combines settings files with flags and variables, and shows the source of each value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource
from click.types import FloatParamType, IntParamType

from hookscope.cli.commands import REFUSED, SETTINGS, Command, Option, commands_of, settings_of
from hookscope.cli.param_types import ParsedValue
from hookscope.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.cli.refused_settings import RefusedSetting
    from hookscope.cli.settings_files import FileSetting

_CHOSEN = f"{__name__}.chosen"
NOT_IN_FILES = ("config", "no-config")


class EffectiveSetting(NamedTuple):
    """The value of an option, its source (``refused`` if no file may set it), and where in it."""

    command: str
    option: str
    value: Any
    source: str
    where: str


def read_settings(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Read the files when ``--config`` and ``--no-config`` are known; the stronger one wins."""
    if ctx.resilient_parsing:
        return value
    source = ctx.get_parameter_source(param.name)
    chosen = ctx.meta.setdefault(_CHOSEN, {})
    if value and (param.name not in chosen or source is ParameterSource.COMMANDLINE):
        chosen[param.name] = (source, value)
    both_seen = all(ctx.get_parameter_source(name) is not None for name in ("config", "no_config"))
    if both_seen and isinstance(ctx.command, Command):
        _apply_files(ctx, chosen)
    return value


def effective_settings(ctx: click.Context) -> Iterator[EffectiveSetting]:
    """Yield every option of every command, with its value without flags."""
    for name, command in commands_of(ctx).items():
        scope = click.Context(command, info_name=name, parent=ctx.find_root())
        scope.default_map, refused = _default_map(ctx, command)
        for option in command.options():
            if option.key in NOT_IN_FILES:
                continue
            raw, source = option.consume_value(scope, {})
            scope.set_parameter_source(option.name, source)
            value = option.type_cast_value(scope, raw)
            if source is ParameterSource.DEFAULT and option.name in refused:
                setting = refused[option.name].setting
                yield EffectiveSetting(
                    name, option.key, setting.value, "refused", str(setting.path)
                )
                continue
            word = _SOURCES[source]
            yield EffectiveSetting(name, option.key, value, word, option.origin(scope, source))


def user_folder() -> Path:
    """Return the folder of the user's own settings."""
    from pathlib import Path

    return Path(click.get_app_dir("hookscope"))


_SOURCES = {
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


def _apply_files(ctx: click.Context, chosen: dict[str, tuple[ParameterSource, Any]]) -> None:
    from pathlib import Path

    from hookscope.cli import settings_files as config

    file, none = chosen.get("config"), chosen.get("no_config")
    if file and none and file[0] == none[0]:
        raise click.UsageError("--config and --no-config cannot both be given.", ctx)
    vocabulary = partial(_vocabulary, commands_of(ctx))
    if none and (not file or none[0] < file[0]):
        settings = config.Settings()
    elif file:
        settings = config.load_file(vocabulary, Path(file[1]))
    else:
        settings = config.load(vocabulary, user_folder(), _working_folder())
    ctx.meta[SETTINGS] = settings
    assert isinstance(ctx.command, Command)
    ctx.default_map, ctx.meta[REFUSED] = _default_map(ctx, ctx.command)
    _warn_of_variables(ctx)


def _vocabulary(commands: Mapping[str, Command]) -> Any:
    from hookscope.cli.settings_files import KnownKeys

    common: set[str] = set()
    keys = {}
    for name, command in commands.items():
        options = [option for option in command.options() if option.key not in NOT_IN_FILES]
        keys[name] = [option.key for option in options]
        common.update(option.key for option in options if option.shared_env)
    return KnownKeys(sorted(common), keys)


def _working_folder() -> Path | None:
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted; absolute paths still work
        return None


def _default_map(
    ctx: click.Context, command: Command
) -> tuple[dict[str, Any], dict[str, RefusedSetting]]:
    """Return what the files set for a command, and what they may not set, by option."""
    settings = settings_of(ctx).of(command.name or "")
    if not settings:
        return {}, {}
    from hookscope.cli.refused_settings import check_setting

    values, refused = {}, {}
    for option in command.options():
        if option.key in settings:
            value = _convert_setting(option, settings[option.key])
            why = check_setting(option.key, settings[option.key])
            if why is None:
                values[option.name] = value
            else:
                refused[option.name] = why
    return values, refused


def _convert_setting(option: Option, setting: FileSetting) -> Any:
    """Return a value of a file as its option takes it. Click would convert 1.5 and true to 1."""
    value = setting.value
    if option.is_bool_flag:
        allowed, kind, example = isinstance(value, bool | str), "true or false", "true"
    elif option.count or isinstance(option.type, IntParamType):
        allowed, kind, example = _is_whole(value) or isinstance(value, str), "a whole number", "1"
    elif isinstance(option.type, FloatParamType):
        allowed = isinstance(value, str | float) or _is_whole(value)
        kind, example = "a number", "0.5"
    elif isinstance(option.type, ParsedValue):  # it checks numbers and lists itself
        allowed, kind, example = not _holds_bool(value), "a text, a number or a list", '"..."'
    elif option.multiple:
        # A single value is accepted too.
        value = value if isinstance(value, list) else [value]
        allowed = all(isinstance(item, str) for item in value)
        kind, example = "a text or a list of texts", '["...", "..."]'
    else:
        # A number is accepted too: target = 3.
        allowed, kind, example = isinstance(value, str) or _is_whole(value), "a text", '"..."'
        value = str(value)
    if not allowed:
        raise SettingsError(
            f"{setting.path}: {option.key} must be {kind}, not {_as_toml(setting.value)}.",
            f"Write {option.key} = {example} there, or give --{option.key} on the command line.",
        )
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _holds_bool(value: Any) -> bool:
    return any(isinstance(item, bool) for item in (value if isinstance(value, list) else [value]))


def _as_toml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _warn_of_variables(ctx: click.Context) -> None:
    """Warn of variables with our prefix that no option reads, which may be misspelled."""
    from hookscope.files.suggestions import near

    commands = commands_of(ctx)
    for name in commands:
        prefix = f"HOOKSCOPE_{name.upper()}_"
        if not any(variable.startswith(prefix) for variable in os.environ):
            continue  # without an import of the command
        options = commands[name].options()
        known = {variable for option in options for variable in option.envvar or ()}
        own = {variable.removeprefix(prefix): variable for variable in known}
        for variable in sorted(os.environ):
            if variable.startswith(prefix) and variable not in known:
                # Without the common prefix, which would make all names similar.
                names = near(variable.removeprefix(prefix), own)
                hint = f" Did you mean {' or '.join(own[name] for name in names)}?" * bool(names)
                ctx.obj.warning(f"The environment variable {variable} is not used.{hint}")
