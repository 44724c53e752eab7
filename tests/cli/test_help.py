"""Help: on every command, complete, in ASCII, as wide as the terminal, and quick to suggest.

``-h`` is in ``test_short_help.py``, ``hookscope help TOPIC`` in ``test_help_topics.py``.
"""

from __future__ import annotations

import inspect

import click
import pytest

import hookscope
from hookscope.cli.commands import GLOBAL, Command, Option
from hookscope.cli.main import cli
from hookscope.commands.show import SHOWN
from hookscope.specs.public import HANDLERS
from hookscope.specs.subject_kinds import (
    CAPTURE_AND_DUMP,
    CAPTURES,
    FEATURES,
    FINGERPRINTS,
    MODEL_AND_DUMP,
    MODEL_AND_FINGERPRINT,
    MODEL_AND_WEIGHTS,
    RUNS,
    STRUCTURES,
    WEIGHTS,
)
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


# How help and docstrings call each kind.
WORDS = {
    CAPTURES: ("capture", "result file"),
    FEATURES: ("features",),
    RUNS: (
        "training run",
        "folder of a run",
        "curves of a run",
        "numbers of a run",
        "captures, runs",
    ),
    WEIGHTS: ("of weights", "or weights", "For weights"),
    STRUCTURES: ("two models and --structure", "With ``structure``"),
    MODEL_AND_WEIGHTS: ("a model and a file of weights", "one side is a model"),
    MODEL_AND_DUMP: ("dump",),
    CAPTURE_AND_DUMP: ("dump",),
    FINGERPRINTS: ("fingerprint",),
    MODEL_AND_FINGERPRINT: ("fingerprint",),
}


def test_help_and_docstrings_name_each_kind_that_is_handled() -> None:
    commands = dict(cli.commands)  # their modules fill the table
    handled = [*HANDLERS, *(("show", kind) for kind in SHOWN)]
    assert {verb for verb, _ in handled} >= {"check", "diff", "export", "filters", "plot", "tree"}
    missing = []
    for verb, kind in handled:
        arguments = [each for each in commands[verb].params if isinstance(each, click.Argument)]
        texts = [" ".join([commands[verb].help or "", *(each.help or "" for each in arguments)])]
        if verb != "show":  # it has no function
            texts.append((inspect.getdoc(getattr(hookscope, verb)) or "").partition("\nArgs:")[0])
        for text in texts:
            if not any(word in " ".join(text.split()) for word in WORDS[kind]):
                missing.append((verb, kind, text))
    assert not missing


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
