"""Words that people try in place of a command, an option or a model are answered with ours."""

from __future__ import annotations

import pytest

from hookscope.cli.commands import Command
from hookscope.cli.main import cli
from hookscope.cli.other_words import COMMANDS, OPTIONS


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("profile", "trace"),
        ("summary", "tree"),
        ("hist", "plot FILE --kind hist"),
        ("gradcam", "cam"),
        ("Grad-CAM", "cam"),
        ("attention", "capture --attention"),
    ],
)
def test_another_word_for_a_command_is_answered_with_ours_and_not_run(
    run, refused, word, line
) -> None:
    done = run(word)
    assert (done.rc, done.stdout) == (2, "")
    error = f"Error: No such command {word!r}. Did you mean 'hookscope {line}'?"
    assert done.stderr.splitlines()[0] == error
    assert f"explained by: hookscope help {line.split()[0]}." in refused("help", word)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("capture --image a.png", "--input"),
        ("cam --gpu", "--device cuda"),
        ("grads --class 3", "--target"),
        ("plot a --attention", "--kind attention"),
        ("tree --summary", "--shapes"),
    ],
)
def test_another_word_for_an_option_is_answered_with_ours(refused, arguments, option) -> None:
    said = refused(*arguments.split())
    assert said.splitlines()[0].endswith(f"Did you mean {option}?")


def test_a_kind_of_tensor_that_an_option_records_is_answered_with_it(run, refused) -> None:
    said = refused("capture", "--what", "output,attention")
    assert said.splitlines()[0].endswith("Did you mean --attention?")
    assert run("capture", "--what", "outptu").stderr.splitlines()[0].endswith("mean output?")


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
    said = refused(name, "--input", "text:a")
    assert said.splitlines() == [
        f"Error: {name} needs a model that reads text, and no model is given.",
        f'Name one: hookscope {name} hf:FOLDER --input "text:the capital of Peru is"',
    ]
    chosen = parse(name, "-m", "hf:gpt2").params["model"]
    assert chosen == parse(name, "hf:gpt2").params["model"] == "hf:gpt2"


def test_a_part_of_a_name_lists_the_models_that_contain_it(run, refused) -> None:
    def listed(*arguments: str) -> list[str]:
        return [line.split()[0] for line in run("models", *arguments).stdout.splitlines()[1:-1]]

    assert listed("vit") == listed("*vit*") == listed("ViT")
    assert "vit_b_16" in listed("vit")
    assert listed("resnet18") == ["resnet18"]  # a whole name is that model alone
    assert "No model matches 'nosuch'" in refused("models", "nosuch")
