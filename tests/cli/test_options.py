"""Options: each has its variable, and is a keyword of the function it leads to."""

from __future__ import annotations

import inspect
import os
import shlex
from pathlib import Path

import click
import pytest

import hookscope
from hookscope.cli.commands import Command, Option
from hookscope.cli.main import cli
from hookscope.specs import catalog
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.views.display import result_columns
from hookscope.views.text.table import NOTE
from tests.cli.conftest import command
from tests.properties.declared_values import first_request, texts_of
from tests.properties.python_calls import FUNCTIONS, type_of

PNG = b"\x89PNG\r\n\x1a\n"  # enough to pass for an image until it is decoded
# Texts of what a declaration does not tell: pairs, files, names that have a form.
FORMS = {
    **{"rename": "a=b", "map": "a=b", "model_args": "a=1", "opt_args": "a=1", "hook_args": "a=1"},
    **{"max_memory": "cpu=1GB", "edits": "a=zero", "edit": "scale:2", "grad_edits": "a=sign"},
    **{"hooks": "os:getcwd", "loss": "mse", "input": "one.png", "layers": "fc", "memory": "1GB"},
    **{"max_bytes": "2GB", "shard_size": "1MB", "limit": "24GB", "size": "32x48", "shape": "2x3"},
    **{"reduce": "mean", "heads": "4", "what": "output", "units": "0-2,5", "channels": "0,8-9"},
    **{"calls": "2-3", "stop_on": "nan", "only": "nan", "skip": "tied", "mean": "1", "std": "1"},
    **{"labels": "a.csv", "task": "video", "tokenizer": "word", "adapter": "none"},
}
# Their model has no default, or their layer.
NEEDED = {"lens": ["hf:gpt2"], "attribute": ["hf:gpt2"], "filters": ["conv1"]}
FILES = {"config", "no-config"}  # their effect is in test_settings.py
# What decides how a result is shown or where it is put, and so is no keyword of the API; the
# positional form of --model; what only Python can give; the keyword for --output.
PRESENTATION = """quiet verbose json color config no_config output no_output force chrome dpi
    mermaid dot cache alpha colormap sort top precision csv markdown model_spec layer_spec
    progress"""
OUTPUTS = dict.fromkeys(("capture", "sweep", "ablate"), "file")
EMPTY = inspect.Parameter.empty
OPTIONS = [
    pytest.param(name, option, id=f"{name}-{option.key}")
    for name, each in cli.commands.items()
    if isinstance(each, Command)
    for option in each.options()
    if option.key not in FILES
]
SWITCHES = [case for case in OPTIONS if case.values[1].secondary_opts]


def needed_by(name: str) -> list[str]:
    """The arguments of a command that have no default."""
    required = [
        param
        for param in cli.commands[name].params
        if isinstance(param, click.Argument) and param.required
    ]
    if name in NEEDED:
        return NEEDED[name]
    return shlex.split(first_request(name).replace("{", ""))[: len(required)]


def text_for(name: str, option: Option) -> str:
    """A text that an option takes, which is not its default."""
    if isinstance(option.type, click.Choice):
        return next(choice for choice in option.type.choices if choice != option.default)
    if option.key == "sort":
        return f"-{(result_columns(command(name).views) or (NOTE,))[0].title}"
    if option.name in FORMS:
        return FORMS[option.name]
    settings = getattr(getattr(hookscope, name, None), "settings", {})
    about = settings.get(option.name)
    good = texts_of(about, type_of(name, option.name))[0] if about is not None else []
    default = str(option.default)
    if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        good += [str(getattr(option.type, "min", None) or 1), "0.375"]
    return next((text for text in good if text != default), "word")


def value_of(context: click.Context, option: Option) -> object:
    if option.expose_value:
        return context.params[option.name]
    return getattr(context.obj, option.name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_has_its_variable(parse, monkeypatch, name, option) -> None:
    """A variable, or two values in one, is read as the flag is."""
    Path("one.png").write_bytes(PNG)
    variable = f"HOOKSCOPE_{name}_{option.key}".upper().replace("-", "_")
    assert variable in option.envvar
    needed = needed_by(name)
    if (option.key == "model" and name in NEEDED) or (name, option.key) == ("filters", "layer"):
        needed = []  # an argument is stronger
    if option.is_flag or option.count:
        text, typed = "0" if option.default else "1", [option.opts[-1]]
        if option.is_flag and option.default:
            typed = [option.secondary_opts[0]]
    else:
        text = text_for(name, option)
        texts = [text, text] if option.multiple and "=" not in text and name != "cam" else [text]
        typed = [word for one in texts for word in (f"--{option.key}", one)]
        text = (option.type.envvar_list_splitter or " ").join(texts)
    plain = (name, option.key) == ("filters", "model")  # a flag makes the argument the layer
    expected = text if plain else value_of(parse(name, *needed, *typed), option)
    if needed:
        assert value_of(parse(name, *needed), option) != expected
    monkeypatch.setenv(variable, text)
    assert value_of(parse(name, *needed), option) == expected


@pytest.mark.parametrize("variable", ["HOOKSCOPE_MODEL", "HOOKSCOPE_SEED", "HOOKSCOPE_DEVICE"])
def test_model_seed_and_device_have_short_names(parse, monkeypatch, variable) -> None:
    word, value = {"MODEL": ("vgg11",) * 2, "SEED": ("3", 3), "DEVICE": ("mps",) * 2}[variable[10:]]
    monkeypatch.setenv(variable, word)
    for name in ("capture", "grads"):
        assert parse(name).params[variable[10:].lower()] == value


@pytest.mark.parametrize(("name", "option"), SWITCHES)
def test_every_switch_can_be_turned_off_again(parse, monkeypatch, name, option) -> None:
    needed = needed_by(name)
    monkeypatch.setenv(option.envvar[0], "1")
    assert value_of(parse(name, *needed), option) is True
    assert value_of(parse(name, *needed, option.secondary_opts[0]), option) is False


def api_of(name: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(getattr(hookscope, name)).parameters)
    parameters.pop(OUTPUTS.get(name, ""), None)
    return {key: value for key, value in parameters.items() if key not in PRESENTATION.split()}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_the_keywords_of_the_api_with_their_defaults(parse, name) -> None:
    keywords = api_of(name)
    assert {param.name for param in command(name).params} - set(PRESENTATION.split()) == set(
        keywords
    )
    params = parse(name, *needed_by(name)).params
    if name == "capture":
        params["stop"] = False  # a run that ends early has no output to return in Python
    for option in command(name).options():
        is_argument = option.key in ("model", "layer") and name in NEEDED
        is_keyword = option.name in keywords and keywords[option.name].default is not EMPTY
        if is_keyword and not is_argument:
            assert params[option.name] == keywords[option.name].default, option.key


def test_choices_are_those_of_the_library() -> None:
    assert inspect.signature(hookscope.capture).parameters["model"].default == DEFAULT_MODEL
    assert set(catalog.TASKS) == {model.task for model in catalog.bundled_models()}


def test_the_model_is_the_argument_or_the_option(parse) -> None:
    assert parse("capture", "vgg11").params["model"] == "vgg11"
    assert parse("capture", "-m", "vgg11").params["model"] == "vgg11"
    assert parse("capture", "vgg11", "-m", "vgg11").params["model"] == "vgg11"
    assert parse("capture").params["model"] == "resnet18"


def test_the_argument_beats_the_variable(parse, monkeypatch) -> None:
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_MODEL", "alexnet")
    assert parse("capture", "vgg11").params["model"] == "vgg11"


def test_several_inputs_in_a_variable_are_parted_as_in_path(parse, monkeypatch) -> None:
    for name in ("a b.png", "c.png"):
        Path(name).write_bytes(PNG)
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_INPUT", os.pathsep.join(["a b.png", "c.png"]))
    assert [spec.text for spec in parse("capture").params["input"]] == ["a b.png", "c.png"]
