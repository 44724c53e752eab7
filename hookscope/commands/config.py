"""``hookscope config``: every effective setting and its source."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.commands import Example, settings_of
from hookscope.cli.console import Console
from hookscope.cli.global_options import command
from hookscope.cli.settings import EffectiveSetting, effective_settings, user_folder
from hookscope.cli.settings_files import FILE_NAME
from hookscope.escapes import visible

EXAMPLES = (
    Example("hookscope config", "All values, each with its file or variable."),
    Example("hookscope config --no-config --json", "Values without settings files, as JSON."),
)


@command(
    "config",
    examples=EXAMPLES,
    main="config no-config json",
    topics="settings",
)
def config_command(ctx: click.Context) -> None:
    """Show every setting and its source.

    A value comes from the first of: flag, environment variable, project file, user file, default.

    A project file may have been written by somebody else. Any model-arg, method, hook and
    hook-arg in it, a model, input or loss that names Python code, an address, a file outside the
    file's folder, trust and force are refused, unless the file is named with --config. No file
    sets trust.
    """
    console: Console = ctx.obj
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
        console.warning(f"{path} sets values that are refused; --config {path} takes them")


def _show_rows(console: Console, rows: list[EffectiveSetting]) -> None:
    cells = [
        (f"{row.command}.{row.option}".lstrip("."), _text(row.value), _from(row)) for row in rows
    ]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(2)]
    if cells:
        console.text("\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in cells))


def _text(value: Any) -> str:
    if value in (None, ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return visible(",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))


def _from(row: EffectiveSetting) -> str:
    return visible(f"{row.source} {row.where}" if row.where else row.source)
