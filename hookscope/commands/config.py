"""``hookscope config``: every effective setting and its source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.commands import Example, command, settings_of
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.settings import EffectiveSetting, effective_settings, user_folder
from hookscope.cli.settings_files import FILE_NAME
from hookscope.errors import RequestError
from hookscope.escapes import visible

if TYPE_CHECKING:
    from hookscope.cli.settings_files import SettingsFile

EXAMPLES = (
    Example("hookscope config", "All values, each with its file or variable."),
    Example("hookscope config --no-config --json", "Values without settings files, as JSON."),
)


@command(
    "config",
    click.option(
        "--allow",
        is_flag=True,
        help="Let the project's settings file name Python code and pass arguments to it.",
    ),
    click.option("--revoke", is_flag=True, help="Revoke that permission."),
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="config no-config json",
    topics="settings",
)
def config_command(ctx: click.Context, allow: bool, revoke: bool) -> None:
    """Show every setting and its source.

    A value comes from the first of: flag, environment variable, project file, user file, default.

    A project file may have been written by somebody else. Any model-arg, method, hook and
    hook-arg in it, and a model, input or loss that names Python code, is refused until --allow has
    recorded the file's path and the hash of its content. trust, force and an output outside the
    file's folder are always refused.
    """
    console: Console = ctx.obj
    if allow or revoke:
        _decide(ctx, allow, revoke)
        return
    rows = list(effective_settings(ctx))
    files = [str(file.path) for file in settings_of(ctx).files]
    user_file = str(user_folder() / FILE_NAME)
    if console.json:
        settings = [{**row._asdict(), "value": row.value} for row in rows]
        console.document(
            {
                "schema": 1,
                "command": "config",
                "files": files,
                "user_file": user_file,
                "ignored": [str(path) for path in settings_of(ctx).ignored],
                "project": _project_document(ctx),
                "settings": settings,
            }
        )
        return
    for path in files:
        console.note(f"read {path}")
    if user_file not in files:
        state = "not read" if os.path.isfile(user_file) else "does not exist"
        console.note(f"the user's settings file: {user_file} ({state})")
    _show_rows(console, rows)
    for path in dict.fromkeys(row.where for row in rows if row.source == "refused"):
        from hookscope.cli.allowed_settings import ALLOW

        hint = f"; '{ALLOW}' allows Python code" if _names_code_unallowed(ctx) else ""
        console.warning(f"{path} sets values that are refused{hint}")


def _of_all_commands(rows: list[EffectiveSetting]) -> list[EffectiveSetting]:
    """Return one row for a value that several commands take, without a command."""
    found: dict[tuple[str, str], list[EffectiveSetting]] = {}
    for row in rows:
        found.setdefault((row.option, _text(row.value)), []).append(row)
    return [same[0] if len(same) == 1 else same[0]._replace(command="") for same in found.values()]


def _show_rows(console: Console, rows: list[EffectiveSetting]) -> None:
    cells = [
        (f"{row.command}.{row.option}".lstrip("."), _text(row.value), _from(row)) for row in rows
    ]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(2)]
    if cells:
        console.text("\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in cells))


def _project_file(ctx: click.Context) -> SettingsFile | None:
    return next((file for file in settings_of(ctx).files if file.found), None)


def _code_in(ctx: click.Context, file: SettingsFile) -> list[tuple[str, str, Any]]:
    """Return command, key and value of each setting of the file that names Python code."""
    from hookscope.cli.allowed_settings import names_code

    return [
        (command, key, setting.value)
        for command, values in settings_of(ctx).values.items()
        for key, setting in values.items()
        if setting.file == file and names_code(key, setting.value)
    ]


def _names_code_unallowed(ctx: click.Context) -> bool:
    from hookscope.cli.allowed_settings import is_allowed

    file = _project_file(ctx)
    return bool(file and _code_in(ctx, file) and not is_allowed(user_folder(), file))


def _project_document(ctx: click.Context) -> dict[str, Any] | None:
    """Describe the project's file for JSON: whether it names code, and whether it may."""
    from hookscope.cli.allowed_settings import is_allowed

    file = _project_file(ctx)
    return file and {
        "file": str(file.path),
        "sha256": file.sha256,
        "names_code": bool(_code_in(ctx, file)),
        "allowed": is_allowed(user_folder(), file),
    }


def _decide(ctx: click.Context, allow: bool, revoke: bool) -> None:
    """Allow the project's file to name code, or revoke that; show the code."""
    from hookscope.cli import allowed_settings as allowing

    console: Console = ctx.obj
    flag = "--allow" if allow else "--revoke"
    if allow and revoke:
        raise click.UsageError("--allow and --revoke cannot both be given.", ctx)
    file = _project_file(ctx)
    if file is None:
        raise RequestError(
            f"{flag} needs a settings file in this folder or above it, and there is none.",
            "Run it in the project's folder, without --config and --no-config.",
        )
    if allow:
        allowing.allow(user_folder(), file)
    had = allow or allowing.revoke(user_folder(), file)
    code = _code_in(ctx, file)
    if console.json:
        names = [{"command": c, "option": key, "value": value} for c, key, value in code]
        project = _project_document(ctx)
        console.document({"schema": 1, "command": "config", "project": project, "code": names})
        return
    source = "allowed" if allow else "refused"
    rows = [EffectiveSetting(c, key, value, source, str(file.path)) for c, key, value in code]
    _show_rows(console, _of_all_commands(rows))
    if allow:
        console.note(f"{file.path} may name Python code until its content changes")
    else:
        console.note(
            f"{file.path} {'may no longer' if had else 'was not allowed to'} name Python code"
        )


def _text(value: Any) -> str:
    if value in (None, ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return visible(",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))


def _from(row: EffectiveSetting) -> str:
    return visible(f"{row.source} {row.where}" if row.where else row.source)
