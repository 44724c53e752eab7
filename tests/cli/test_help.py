"""Help: on every command, complete, in ASCII, as wide as the terminal, and quick to suggest.

``-h`` is in ``test_short_help.py``, ``hookscope help TOPIC`` in ``test_help_topics.py``.
"""

from __future__ import annotations

import click
import pytest

from hookscope.cli.commands import GLOBAL, Command, Option
from hookscope.cli.main import cli
from tools import cli_reference

COMMANDS = list(cli.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_each_command_what_its_own_help_says(name: str) -> None:
    assert cli.commands.shorts[name] == cli.commands[name].get_short_help_str(limit=200)


def help_of(name: str, width: int = 80) -> str:
    root = click.Context(cli, info_name="hookscope", terminal_width=width, **cli.context_settings)
    command = cli.commands[name]
    return command.get_help(command.context_class(command, root, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_and_default_but_no_variables_and_ranges(name: str) -> None:
    command = cli.commands[name]
    assert isinstance(command, Command)
    text = " ".join(help_of(name).split())
    for option in command.options():
        assert option.help, option.key
        assert f"--{option.key}" in text or f"--[no-]{option.key}" in text
        assert f"HOOKSCOPE_{name}_{option.key}".upper().replace("-", "_") not in text
        if option.section == GLOBAL:
            continue
        if option.default and not isinstance(option.default, bool):
            assert f"default: {option.default}" in text
    assert "default: no-" not in text
    assert "env var" not in text and "x>=" not in text
    assert text.endswith(
        f"Options can also be set by environment variables, HOOKSCOPE_{name.upper()}_<OPTION>, and"
        " in hookscope.toml: see 'hookscope help settings'."
    )
    for argument in command.params:
        if isinstance(argument, click.Argument):
            assert argument.help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_two_examples_or_more(name: str) -> None:
    command = cli.commands[name]
    assert isinstance(command, Command)
    assert len(command.examples) >= 2
    ending = help_of(name).partition("\nExamples:\n")[2]
    assert [line.strip() for line in ending.splitlines() if line.startswith("  hookscope")] == [
        example.line for example in command.examples
    ]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_follows_the_terminal_up_to_100_columns(run, columns) -> None:
    text = run("grads", "--help", env={"COLUMNS": str(columns)}).stdout
    prose = text.partition("Positional")[0].splitlines()
    assert max(map(len, prose)) <= min(columns, 100)
    assert max(map(len, prose)) > min(columns, 100) - 12


@pytest.mark.parametrize("name", COMMANDS)
def test_narrow_help_gives_each_meaning_lines_of_its_own(name: str) -> None:
    text = help_of(name, 40).partition("\nExamples:")[0]
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 40 and " " in line.strip()] == []
    quiet = lines.index("  -q, --[no-]quiet")
    assert lines[quiet + 1] == "    Suppress notes."
    # Nothing is lost but line ends and the room between columns.
    wide = help_of(name, 100).partition("\nExamples:")[0]
    assert "".join(text.split()) == "".join(wide.split())


def test_every_option_has_a_section_of_its_own_kind() -> None:
    for command in cli.commands.values():
        assert isinstance(command, Command)
        sections = [option.section for option in command.options()]
        # A section that came back later would be torn apart in the reader's eye.
        firsts = list(dict.fromkeys(sections))
        assert sections == [s for first in firsts for s in sections if s == first]


def test_the_reference_page_is_fresh() -> None:
    assert cli_reference.PAGE.read_text(encoding="utf-8") == cli_reference.page()


def test_a_stale_reference_page_is_noticed(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli_reference, "PAGE", tmp_path / "cli.md")
    assert cli_reference.main(["--check"]) == 1
    assert cli_reference.main([]) == 0
    assert cli_reference.main(["--check"]) == 0
    cli_reference.PAGE.write_text("old", encoding="utf-8")
    assert cli_reference.main(["--check"]) == 1
    assert "is stale" in capsys.readouterr().err


def test_no_option_is_named_twice_in_a_section() -> None:
    for command in cli.commands.values():
        assert isinstance(command, Command)
        names = [opt for p in command.params if isinstance(p, Option) for opt in p.opts]
        assert len(names) == len(set(names))
