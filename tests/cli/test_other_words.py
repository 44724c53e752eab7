"""Words that people try in place of a command, an option or a model are answered with ours."""

from __future__ import annotations

import pytest

from hookscope.cli.commands import Command
from hookscope.cli.main import cli
from hookscope.cli.other_words import COMMANDS, OPTIONS


def test_what_is_suggested_exists_and_is_not_a_name_of_ours() -> None:
    flags: set[str] = set()
    for name, command in cli.commands.items():
        assert isinstance(command, Command)
        assert name not in COMMANDS
        own = {flag for option in command.params for flag in option.opts}
        flags |= own
        for line in COMMANDS.values():
            if line.split()[0] == name:
                assert {word for word in line.split() if word.startswith("--")} <= own
    assert {line.split()[0] for line in COMMANDS.values()} <= set(cli.commands)
    assert {option.split()[0] for options in OPTIONS.values() for option in options} <= flags


@pytest.mark.parametrize("name", ["lens", "attribute"])
def test_a_command_for_text_does_not_run_on_the_default_model_of_images(
    refused, parse, name
) -> None:
    assert name in refused(name, "--input", "text:a")
    chosen = parse(name, "-m", "hf:gpt2").params["model"]
    assert chosen == parse(name, "hf:gpt2").params["model"] == "hf:gpt2"
