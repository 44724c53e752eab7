"""``hookscope config``: every setting in force, and where it came from."""

from __future__ import annotations

import os
from typing import Any

import click

from hookscope.cli.command import Example, command
from hookscope.cli.everywhere import everywhere
from hookscope.cli.out import Out
from hookscope.cli.settings import Effective, effective, settings_of
from hookscope.config import FILE_NAME

EXAMPLES = (
    Example("hookscope config", "All values, with file or variable."),
    Example("hookscope config --no-config --json", "What holds without settings files, as JSON."),
)


@command("config", everywhere, click.pass_context, examples=EXAMPLES)
def config(ctx: click.Context) -> None:
    """Show every setting and where it came from.

    The order, strongest first: flag, environment variable, hookscope.toml (or [tool.hookscope] in
    pyproject.toml) here or in a folder above, hookscope.toml in the user's settings folder,
    default. A key is an option's long name; at the top of a file it is for all commands, in a table
    such as [capture] for one. Relative paths are taken from the working folder.
    """
    out: Out = ctx.obj
    rows = list(effective(ctx))
    files = [str(path) for path in settings_of(ctx).files]
    user_file = os.path.join(click.get_app_dir("hookscope"), FILE_NAME)
    if out.json:
        settings = [{**row._asdict(), "value": row.value} for row in rows]
        out.document(
            {
                "schema": 1,
                "command": "config",
                "files": files,
                "user_file": user_file,
                "settings": settings,
            }
        )
        return
    for path in files:
        out.note(f"read {path}")
    if user_file not in files:
        state = "not read" if os.path.isfile(user_file) else "does not exist"
        out.note(f"the user's settings file: {user_file} ({state})")
    cells = [(f"{row.command}.{row.option}", _text(row.value), _from(row)) for row in rows]
    widths = [max(len(cell[i]) for cell in cells) for i in range(2)]
    out.text("\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in cells))


def _text(value: Any) -> str:
    if value in (None, ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _from(row: Effective) -> str:
    return f"{row.source} {row.where}" if row.where else row.source
