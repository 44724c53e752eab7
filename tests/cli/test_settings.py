"""Settings: which of two sources wins, what a file may hold, and where a value came from."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import click
import pytest
from click.types import FloatParamType

from hookscope.cli import settings_files as config
from hookscope.cli.commands import Command
from hookscope.cli.main import cli
from hookscope.errors import SettingsError

VOCABULARY = config.KnownKeys(
    ("model", "seed"), {"tree": ("model", "depth"), "capture": ("seed", "input")}
)

# The strongest first. Each source says its own number for the seed.
SOURCES = (
    "flag",
    "variable of the command",
    "variable of all commands",
    "project file, table of the command",
    "project file, top",
    "user file, table of the command",
    "user file, top",
    "default",
)


def user_folder(home: Path) -> Path:
    """Where this platform keeps a user's settings, in a home of the test's own."""
    folder = Path(click.get_app_dir("hookscope"))
    assert home in folder.parents
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(("stronger", "weaker"), list(combinations(SOURCES, 2)))
def test_the_stronger_of_two_sources_wins(parse, monkeypatch, tmp_path, stronger, weaker) -> None:
    said = {stronger, weaker} - {"default"}
    number = {source: str(n + 1) for n, source in enumerate(SOURCES)} | {"default": "0"}
    arguments = ["--seed", number["flag"]] if "flag" in said else []
    if "variable of the command" in said:
        monkeypatch.setenv("HOOKSCOPE_GRADS_SEED", number["variable of the command"])
    if "variable of all commands" in said:
        monkeypatch.setenv("HOOKSCOPE_SEED", number["variable of all commands"])
    for owner, folder in [("project", tmp_path / "work"), ("user", user_folder(tmp_path / "home"))]:
        top, table = f"{owner} file, top", f"{owner} file, table of the command"
        text = f"seed = {number[top]}\n" if top in said else ""
        text += f"[grads]\nseed = {number[table]}\n" if table in said else ""
        (folder / "hookscope.toml").write_text(text)
    assert parse("grads", *arguments).params["seed"] == int(number[stronger])


def test_a_real_command_follows_flag_variable_and_files(run, tmp_path: Path) -> None:
    def is_json(*arguments: str, **env: str) -> bool:
        done = run("help", *arguments, env=env)
        assert (done.rc, done.stderr) == (0, "")
        return done.stdout.startswith("{")

    work = tmp_path / "work"
    work.mkdir()
    (work / "hookscope.toml").write_text("json = true\n")
    (work / "other.toml").write_text("[help]\njson = false\n")
    assert is_json()
    assert not is_json("--no-json")
    assert not is_json("--no-config")
    assert not is_json("--config", "other.toml")
    assert not is_json(HOOKSCOPE_JSON="0")
    assert is_json(HOOKSCOPE_JSON="0", HOOKSCOPE_HELP_JSON="1")
    assert is_json("--json", HOOKSCOPE_JSON="0", HOOKSCOPE_HELP_JSON="0")


@pytest.mark.parametrize("before", [True, False])
def test_config_flags_before_and_after_the_command(run, tmp_path: Path, before: bool) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "hookscope.toml").write_text("seed = 4\n")
    (work / "other.toml").write_text("seed = 5\n")

    def seed(*flags: str, **env: str) -> str:
        arguments = [*flags, "config"] if before else ["config", *flags]
        lines = run(*arguments, env=env).stdout.splitlines()
        return next(line.split()[1] for line in lines if line.startswith("grads.seed "))

    assert seed() == "4"
    assert seed("--config", "other.toml") == "5"
    assert seed("--no-config") == "0"
    assert seed(HOOKSCOPE_CONFIG="other.toml") == "5"
    assert seed(HOOKSCOPE_NO_CONFIG="1") == "0"
    assert seed("--config", "other.toml", HOOKSCOPE_NO_CONFIG="1") == "5"
    assert seed("--no-config", HOOKSCOPE_CONFIG="other.toml") == "0"


def found_from(folder: Path) -> Path | None:
    file = config.find_project(folder, [])
    return file and file.path


def test_the_project_file_is_found_upwards(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert found_from(below) is None
    (tmp_path / "pyproject.toml").write_text("[tool.hookscope]\nseed = 1\n")
    assert found_from(below) == tmp_path / "pyproject.toml"
    (tmp_path / "hookscope.toml").write_text("seed = 2\n")
    assert found_from(below) == tmp_path / "hookscope.toml"
    # A pyproject.toml with no table of ours hides nothing, broken or not.
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    (below / "pyproject.toml").write_text("this is [not TOML")
    assert found_from(below) == tmp_path / "hookscope.toml"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.hookscope]\nseed = 3\n")
    assert found_from(below) == tmp_path / "a" / "pyproject.toml"


def test_keys_may_be_written_with_underscores_and_lists(parse) -> None:
    Path("hookscope.toml").write_text(
        "[capture]\nmax_bytes = '1KB'\nlayer = 'fc'\ntype = ['Conv2d', 'Linear']\n"
        "what = ['output', 'input']\nshape = [1, 3, 8, 8]\nsize = 32\nmean = [0.5, 0.5, 0.5]\n"
        "strict = true\n"
    )
    params = parse("capture").params
    assert params["max_bytes"] == 1000
    assert params["layers"] == ("fc",)
    assert params["types"] == ("Conv2d", "Linear")
    assert params["what"] == ("output", "input")
    assert params["shape"] == (1, 3, 8, 8)
    assert params["size"] == 32
    assert params["mean"] == (0.5, 0.5, 0.5)
    assert params["strict"] is True


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("modle = 'x'", "unknown key 'modle'.", "Did you mean model?"),
        ("zzz = 1", "unknown key 'zzz'.", "Valid names: model, seed."),
        ("[captur]\nseed = 1", "unknown table [captur].", "Did you mean capture?"),
        ("[capture]\nsede = 1", "unknown key 'sede' in [capture].", "Did you mean seed?"),
        (
            "depth = 1",
            "'depth' is not",
            "[tree] and below it: depth = 1",
        ),
        ("input = 'a.png'", "'input' is not a", '[capture] and below it: input = "a.png"'),
        ("seed = 2020-01-01", "'seed' must be", "command line"),
        ("[capture]\nseed = [[1]]", "'seed' must be", "command line"),
        ("[capture.seed]\na = 1", "'seed' must be", "command line"),
        ("seed = ", "valid TOML", "--no-config"),
        ("capture = 1", "unknown key 'capture'.", "Valid names"),
    ],
)
def test_what_a_file_may_not_hold(tmp_path: Path, text: str, message: str, hint: str) -> None:
    file = tmp_path / "hookscope.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        config.load(lambda: VOCABULARY, tmp_path / "nowhere", tmp_path)
    assert message in caught.value.message
    assert str(file) in caught.value.message
    assert hint in caught.value.hint


def test_unreadable_settings_are_told(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'")
    for name, message in [("latin.toml", "cannot be read"), ("no.toml", "does not exist")]:
        with pytest.raises(SettingsError, match=message):
            config.load_file(lambda: VOCABULARY, tmp_path / name)
    with pytest.raises(SettingsError, match="is a folder"):
        config.load_file(lambda: VOCABULARY, tmp_path)


def test_an_unknown_key_is_a_usage_error_with_a_suggestion(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hookscope.toml").write_text("[capture]\nlayr = 'fc'\n")
    done = run("models")
    assert (done.rc, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert (
        error == f"Error: {tmp_path / 'work' / 'hookscope.toml'}: unknown key 'layr' in [capture]."
    )
    assert hint == "Did you mean layer?"


def test_the_file_of_a_bad_value_is_named(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "hookscope.toml"
    file.write_text("seed = 'much'\n")
    for arguments in (["capture"], ["config"]):
        done = run(*arguments)
        assert done.rc == 2
        assert f"Invalid value for --seed (from {file}): 'much'" in done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train = 1", "1"),
        ("seed = 1.5", "1.5"),
        ("depth = true", "true"),
        ("verbose = true", "true"),
        ("shape = true", "true"),
        ("layer = 3", "3"),
        ("layer = ['fc', 3]", '["fc", 3]'),
        ("weights = true", "true"),
        ("weights = ['a']", '["a"]'),
    ],
)
def test_a_value_must_be_of_the_option_s_type(parse, text: str, shown: str) -> None:
    file = Path("hookscope.toml").resolve()
    file.write_text(f"[capture]\n{text}\n")
    with pytest.raises(SettingsError) as caught:
        parse("capture")
    assert caught.value.message.startswith(f"{file}: {text.split()[0]} must be ")
    assert caught.value.message.endswith(f", not {shown}.")
    key = text.split()[0]
    assert f"Write {key} = " in caught.value.hint
    assert caught.value.exit_code == 2


FLOAT_OPTIONS = [
    (name, option.key)
    for name, command in cli.commands.items()
    if isinstance(command, Command)
    for option in command.options()
    if isinstance(option.type, FloatParamType)
]


@pytest.mark.parametrize(("name", "key"), FLOAT_OPTIONS)
def test_an_option_with_a_float_takes_any_number_in_a_file(parse, name: str, key: str) -> None:
    command = cli.commands[name]
    assert isinstance(command, Command)
    option = next(option for option in command.options() if option.key == key)
    required = [
        a.name or "" for a in command.params if isinstance(a, click.Argument) and a.required
    ]
    file = Path("hookscope.toml").resolve()
    for text, number in [("0.5", 0.5), ("1e-3", 0.001), ("1", 1.0), ("'0.25'", 0.25)]:
        file.write_text(f"[{name}]\n{key} = {text}\n")
        value = parse(name, *required).params[option.name]
        assert (value, type(value)) == (number, float)
    for text in ("true", "[0.5]"):
        file.write_text(f"[{name}]\n{key} = {text}\n")
        with pytest.raises(SettingsError) as caught:
            parse(name, *required)
        assert caught.value.message == f"{file}: {key} must be a number, not {text}."
        assert caught.value.hint.startswith(f"Write {key} = 0.5 there")


def test_texts_in_a_file_are_read_as_on_the_command_line(parse) -> None:
    Path("hookscope.toml").write_text(
        "[grads]\ntrain = 'yes'\nseed = '5'\ndepth = 2\ntarget = 3\nverify = true\n"
    )
    params = parse("grads").params
    assert (params["train"], params["seed"], params["depth"]) == (True, 5, 2)
    assert (params["target"], params["verify"]) == ("3", True)


def test_config_shows_each_value_and_where_it_came_from(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "hookscope.toml"
    file.write_text("device = 'cuda'\n[capture]\nlayer = ['layer3.*', 'fc']\n")
    done = run("config", env={"HOOKSCOPE_GRADS_TARGET": "3", "HOOKSCOPE_SEED": "9"})
    assert done.rc == 0
    read, user = done.stderr.splitlines()
    assert read == f"read {file}"
    assert user.startswith("the user's")
    assert user.endswith("hookscope.toml (does not exist)")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["capture.layer"] == ["layer3.*,fc", "file", str(file)]
    assert rows["grads.device"] == ["cuda", "file", str(file)]
    assert rows["grads.target"] == ["3", "environment", "HOOKSCOPE_GRADS_TARGET"]
    assert rows["capture.seed"] == ["9", "environment", "HOOKSCOPE_SEED"]
    assert rows["capture.weights"] == ["random", "default"]
    assert rows["tree.model-arg"] == ["-", "default"]


def test_config_as_json(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "pyproject.toml"
    file.write_text("[tool.hookscope.grads]\nloss = 'kl'\n")
    document = json.loads(run("config", "--json").stdout)
    assert document["schema"] == 1
    assert document["files"] == [str(file)]
    assert Path(document["user_file"]).name == "hookscope.toml"
    assert tmp_path / "home" in Path(document["user_file"]).parents
    found = {(row["command"], row["option"]): row for row in document["settings"]}
    assert found["grads", "loss"] == {
        "command": "grads",
        "option": "loss",
        "value": "kl",
        "source": "file",
        "where": str(file),
    }
    assert found["grads", "what"]["value"] == ["output", "param"]
    assert found["capture", "strict"]["value"] is False
