"""Writes ``docs/cli.md``, the reference of the command line, from the commands' own help.

``python -m tools.cli_reference`` writes the page; with ``--check`` it writes nothing and exits 1 if
the page is not what the commands say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hookscope.cli.help_topics import TOPICS, topic_text
from hookscope.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 98

HEAD = """\
# The command line

This page is generated from the help of the commands by `make docs`. `hookscope COMMAND -h` prints a
short help, `hookscope COMMAND --help` all of it, and `hookscope help TOPIC` one of the
[topics](#help-topics).

Results go to standard output, everything else to standard error. The exit status is 0 for success,
1 if a valid request failed while running, 2 if the request was wrong, and 130 after Ctrl-C.

A value is taken from the first of: option, environment variable, the project's settings
(`hookscope.toml`, or `[tool.hookscope]` in `pyproject.toml`, in the working folder or above), the
user's `hookscope.toml`, default. `hookscope config` shows each value and its source.

The user's file is `~/.config/hookscope/hookscope.toml` on Linux (or under `XDG_CONFIG_HOME`),
`~/Library/Application Support/hookscope/hookscope.toml` on macOS, and
`%APPDATA%\\hookscope\\hookscope.toml` on Windows; `hookscope config` prints its path.

## Settings files of a project

A project's file may have been downloaded with the folder, so it is trusted less than an option or a
variable.

- Python code is refused (exit 2). This concerns any `hook`, `hook-arg`, `method` and `model-arg`, a
  `model` of the form `FILE.py:NAME` or `package.module:NAME` or of a plugin, and a `loss` or
  `input` that names a function.
- `trust` and `force` are refused, and so is an `output` or `chrome` outside the file's
  folder, by `..`, `~`, a link or an address.
- A file that is read is one in that folder or below it: `model`, `input`, `weights`, `tokenizer`,
  `adapter`, `target`, `edit`, `grad-edit`, `direction`, `labels` and `map`. Addresses, pipes,
  devices and lists (`@FILE`) are refused.
- The search ends at the root of a repository (`.git`, `.hg`) or at the home folder. A file, or a
  link to one, that belongs to neither you nor root is ignored with a note (not on Windows).

An option or a variable overrides a refused value. A file named with `--config` or
`HOOKSCOPE_CONFIG`, and the user's own file, may set all keys but `trust`. Completion reads no
settings file. `hookscope config` shows refused values as `refused`.

## Environment variables

Every option but `--version`, `--help` and `-h` can be set by the variable
`HOOKSCOPE_<COMMAND>_<OPTION>`. The values of a repeatable option are separated by spaces
(`HOOKSCOPE_CAPTURE_LAYER="fc conv1"`), those of `HOOKSCOPE_CAPTURE_INPUT` by the separator of
`PATH`. A comma is part of the value.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    root = cli.context_class(
        cli, info_name="hookscope", terminal_width=WIDTH, **cli.context_settings
    )
    yield _section("hookscope", cli.get_help(root))
    for name, command in cli.commands.items():
        context = command.context_class(command, info_name=name, parent=root)
        yield _section(f"hookscope {name}", command.get_help(context))
    yield "## Help topics\n"
    for name in TOPICS:
        yield _section(f"hookscope help {name}", topic_text(name, root), "###")


def _section(title: str, text: str, level: str = "##") -> str:
    return f"{level} {title}\n\n```text\n{text}\n```\n"


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
