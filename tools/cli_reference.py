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

## Settings files of a project

The project's file comes with whatever was downloaded into the folder, so it is not trusted as a
flag or a variable is.

- Python code is refused (exit 2) until you have run `hookscope config --allow`, and again after
  any change of the file. That is any `hook`, `hook-arg`, `method` and `model-arg`, a `model` that
  is `FILE.py:NAME`, `package.module:NAME` or of a plugin, and a `loss` or `input` that names a
  function.
- `--allow` shows these values and records the file's path and the SHA-256 of its content in the
  folder `allowed` beside the user's file; `--revoke` takes that back. What is in the Python files
  is not recorded. Code that is named by a relative path or by a module's name is only run from the
  folder of the settings file, since elsewhere the same name is another file.
- `trust` and `force` are never taken from it, and neither is an `output` or `chrome` outside its
  folder, by `..`, `~`, a link or an address.
- The search ends at the root of a repository (`.git`, `.hg`) or at the home folder. A file, or a
  link to one, that belongs to neither you nor root is ignored with a note; Windows has no such
  check.

A flag or a variable takes the place of a refused value. A file that is named with `--config` or
`HOOKSCOPE_CONFIG`, and the user's own file, may set all keys but `trust`. Completion reads no
settings file. `hookscope config` shows refused values as `refused`.

## Variables

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
