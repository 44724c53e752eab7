"""``hookscope help TOPIC``: what the values of some options can be."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from hookscope.cli.commands import Command, Option
from hookscope.cli.help_topics import TOPICS, topic_text
from hookscope.cli.main import cli
from hookscope.errors import SettingsError


def text_of(name: str, width: int = 100) -> str:
    root = cli.context_class(
        cli, info_name="hookscope", terminal_width=width, **cli.context_settings
    )
    return topic_text(name, root)


@pytest.mark.parametrize("name", TOPICS)
def test_every_topic_begins_with_its_summary_and_is_plain_ascii(name: str) -> None:
    text = text_of(name)
    assert text.startswith(TOPICS[name])
    assert text.isascii()
    assert name not in cli.commands  # 'hookscope help NAME' would be ambiguous


@pytest.mark.parametrize("name", TOPICS)
def test_every_topic_follows_the_terminal(name: str) -> None:
    for width in (80, 100):
        assert max(map(len, text_of(name, width).splitlines())) <= width


def test_a_command_names_topics_that_exist() -> None:
    for command in cli.commands.values():
        assert isinstance(command, Command)
        assert set(command.topics) <= set(TOPICS)
    named = {topic for command in cli.commands.values() for topic in command.topics}
    assert named == set(TOPICS)


def test_the_tables_are_those_of_the_code() -> None:
    from hookscope.specs.cam_methods import METHODS
    from hookscope.specs.checks import CHECKS, RUN_CHECKS
    from hookscope.specs.choices import HOOK_KINDS
    from hookscope.specs.edit import GRADIENT_OPERATIONS, VALUE_OPERATIONS
    from hookscope.specs.extract_options import FORMS
    from hookscope.specs.losses import FORMULAS

    texts = {name: " ".join(text_of(name).split()) for name in TOPICS}
    for loss in FORMULAS.values():
        assert f"{loss.name} {loss.formula}" in texts["losses"]
    for operation in (*VALUE_OPERATIONS.values(), *GRADIENT_OPERATIONS.values()):
        assert f"{operation.form} {operation.formula}" in texts["edits"]
    for method in METHODS.values():
        assert f"{method.name} {method.formula}" in texts["cam-methods"]
    for check in (*CHECKS.values(), *RUN_CHECKS.values()):
        assert f"{check.name} {check.finds}" in texts["checks"]
    for kind in HOOK_KINDS:
        assert f"{kind} hook(" in texts["hooks"]
    for form in FORMS:
        assert form in texts["reductions"]


def test_the_variables_for_every_command_are_those_of_the_options() -> None:
    shared = {
        option.shared_env.removeprefix("HOOKSCOPE_")
        for command in cli.commands.values()
        if isinstance(command, Command)
        for option in command.options()
        if option.shared_env
    }
    text = " ".join(text_of("settings").split())
    listed = text.partition("for every command: MODEL")[2]
    assert shared == {"MODEL", *listed.partition(" HOOKSCOPE_")[0].strip(", ").split(", ")}
    keys = text.partition("At the top of a file, ")[2].partition(" count for every command")[0]
    in_files = {name.lower() for name in shared - {"CONFIG", "NO_CONFIG"}}
    assert set(keys.replace(" and ", ", ").split(", ")) == in_files


def test_the_options_that_variables_and_files_do_not_set_are_those_of_the_help(parse) -> None:
    text = " ".join(text_of("settings").split()).replace("no- ", "no-")  # broken at a hyphen
    only_typed = text.partition("Only the command line sets ")[2].partition(". No file sets ")[0]
    never_in_files = text.partition("No file sets ")[2].partition(", and no project file")[0]
    flags = {
        flag
        for command in (cli, *cli.commands.values())
        for param in command.get_params(click.Context(command))
        if isinstance(param, click.Option) and not isinstance(param, Option)
        for flag in param.opts
    }
    assert set(only_typed.replace(" and ", ", ").split(", ")) == flags
    assert never_in_files == "config, no-config or trust"
    for line in ("config = 'a.toml'", "no-config = true", "trust = true"):
        Path("own.toml").write_text(f"[tree]\n{line}\n")
        with pytest.raises((SettingsError, click.UsageError), match=r"unknown key|cannot be set"):
            parse("tree", "--config", "own.toml")
    Path("hookscope.toml").write_text("[capture]\nforce = true\n")
    with pytest.raises(SettingsError, match="sets force, which a project's settings file"):
        parse("capture")
    assert parse("capture", "--config", "hookscope.toml").params["force"]


def test_the_example_of_settings_is_a_table_whose_keys_are_options(run, tmp_path: Path) -> None:
    example = text_of("settings").partition("A complete example for pyproject.toml:\n\n")[2]
    lines = [line.strip() for line in example.partition("\n\n")[0].splitlines()]
    assert len(lines) == 5
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    shown = run("config", cwd=tmp_path).stdout
    for expected in ("capture.model", "resnet50", "capture.layer", "layer3.*,fc"):
        assert expected in shown
