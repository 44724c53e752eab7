"""``-h``: one screen with the purpose of a command, examples and its main options."""

from __future__ import annotations

import click
import pytest

from hookscope.cli.commands import GLOBAL, Command
from hookscope.cli.global_options import SECTION as TABLE
from hookscope.cli.help_layout import first_sentence
from hookscope.cli.main import EXAMPLES, cli
from tests.test_documents import DOCS, blocks_of, commands_of

COMMANDS = list(cli.commands)
LINES, COLUMNS = 24, 80


def short_help_of(name: str, width: int = COLUMNS) -> str:
    root = click.Context(cli, info_name="hookscope", terminal_width=width, **cli.context_settings)
    command = cli.commands[name]
    return command.short_help_text(command.context_class(command, root, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_a_screen(name: str) -> None:
    lines = short_help_of(name).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", COMMANDS)
def test_it_has_the_summary_examples_and_the_main_options(name: str) -> None:
    command = cli.commands[name]
    assert isinstance(command, Command)
    text = short_help_of(name)
    assert cli.commands.shorts[name] in text
    shown = [line.strip() for line in text.splitlines() if line.startswith("  hookscope")]
    assert 2 <= len(shown) <= 4
    assert set(shown) <= {example.line for example in command.examples}
    arguments = any(isinstance(param, click.Argument) for param in command.params)
    title = {
        (False, True): "Main options",
        (True, True): "Arguments and main options",
        (True, False): "Arguments",
    }[arguments, bool(command.main_options)]
    rows = text.partition(f"\n{title}:\n")[2]
    assert rows
    keys = {option.key for option in command.options()}
    for key in command.main_options:
        assert key in keys
        assert f"--{key}" in rows or f"--[no-]{key}" in rows
    for argument in command.params:
        if isinstance(argument, click.Argument):
            assert first_sentence(argument.help or "") in " ".join(rows.split())
    assert text.endswith(f"'hookscope {name} --help' shows all options.")


def test_it_names_every_option_that_an_example_of_the_docs_uses() -> None:
    missing: dict[str, set[str]] = {}
    examples = [
        words
        for page in sorted(DOCS.rglob("*.md"))
        if page.name != "cli.md"  # made of the help
        for kind, text in blocks_of(page)
        if kind == "sh"
        for words in commands_of(text) or ()
    ]
    for name, *words in examples:
        command = cli.commands[name]
        assert isinstance(command, Command)
        shared = {option.key for option in command.options() if option.section in (GLOBAL, TABLE)}
        flags = {flag: option.key for option in command.options() for flag in option.opts}
        used = {flags[word] for word in words if word in flags} - shared
        shown = short_help_of(name)
        hidden = {key for key in used if f"--{key}" not in shown and f"]{key}" not in shown}
        missing.setdefault(name, set()).update(hidden)
    assert len(missing) > 20  # commands with examples
    assert {name: keys for name, keys in missing.items() if keys} == {}


def test_every_further_option_that_it_names_exists_and_is_no_main_one() -> None:
    for command in cli.commands.values():
        assert isinstance(command, Command)
        assert set(command.also) <= {option.key for option in command.options()}
        assert not set(command.also) & set(command.main_options)


def test_that_of_the_program_names_every_command_and_fits_a_screen(run) -> None:
    done = run("-h")
    assert (done.rc, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES
    for title, group in cli.commands.groups.items():
        assert f"{title} {', '.join(group)}" in " ".join(done.stdout.split())
    assert [line.strip() for line in lines if line.startswith("  hookscope")] == [
        example.line for example in EXAMPLES
    ]
    assert "'hookscope --help' describes all commands" in " ".join(done.stdout.split())


def test_it_goes_to_stdout_and_is_shorter_than_the_help(run) -> None:
    done = run("grads", "-h")
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout == short_help_of("grads") + "\n"
    assert len(done.stdout) < len(run("grads", "--help").stdout) / 2


def test_no_arguments_print_it_with_status_2(run, refused) -> None:
    said = refused()
    assert said == run("-h").stdout


def test_it_follows_a_narrow_terminal(run) -> None:
    text = run("capture", "-h", env={"COLUMNS": "40"}).stdout
    prose = [line for line in text.splitlines() if not line.startswith("  hookscope")]
    assert max(map(len, prose)) <= 40


def test_it_comes_before_other_options_are_checked(run) -> None:
    done = run("capture", "--seed", "1", "-h", "--input", "missing.png")
    assert (done.rc, done.stdout) == (0, short_help_of("capture") + "\n")
