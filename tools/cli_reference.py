"""Writes ``docs/cli.md``, the reference of the command line, from the commands' own help.

``python -m tools.cli_reference`` writes the page; with ``--check`` it writes nothing and exits 1 if
the page is not what the commands say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hookscope.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 98

HEAD = """\
# The command line

This page is made from the commands' own help by `make docs`.

Results go to standard output, everything else to standard error. The exit status is 0 when done, 1
when a sound request failed while running, 2 when the request was wrong, 130 after Ctrl-C.

A value is taken from the first of: the flag, the environment variable, the project's settings
(`hookscope.toml`, or `[tool.hookscope]` in `pyproject.toml`, here or in a folder above), the user's
`hookscope.toml`, the default. `hookscope config` shows each value and where it came from.

The user's file is `~/.config/hookscope/hookscope.toml` on Linux (or under `XDG_CONFIG_HOME`),
`~/Library/Application Support/hookscope/hookscope.toml` on macOS, and
`%APPDATA%\\hookscope\\hookscope.toml` on Windows; `hookscope config` tells its path.

Every option has the variable `HOOKSCOPE_<COMMAND>_<OPTION>`. In that of a repeatable option, spaces
separate the values (`HOOKSCOPE_CAPTURE_LAYER="fc conv1"`), and in `HOOKSCOPE_CAPTURE_INPUT` the
separator of `PATH` does. A comma belongs to the value.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    root = click.Context(cli, info_name="hookscope", terminal_width=WIDTH, **cli.context_settings)
    yield _section("hookscope", cli.get_help(root))
    for name, command in cli.commands.items():
        context = click.Context(command, info_name=name, parent=root)
        yield _section(f"hookscope {name}", command.get_help(context))


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit status."""
    fresh = page()
    if "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(fresh, encoding="utf-8", newline="\n")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    print(f"{PAGE} is stale: run python -m tools.cli_reference", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
