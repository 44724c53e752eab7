"""Options: each has its variable, and is a keyword of the function it leads to."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import click
import pytest

import hookscope
from hookscope.cli.commands import Command, Option
from hookscope.cli.main import cli
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.program_options import read_calls

PNG = b"\x89PNG\r\n\x1a\n"  # enough to pass for an image until it is decoded

# A word, as a variable or a flag would hold it, and the value it stands for, where the type of the
# option alone does not tell: COMMAND OPTION, or OPTION of every command that has it.
SAMPLES = {
    "calls": ("2-3", read_calls("2-3")),
    "rename": ("backbone=features head=", {"backbone": "features", "head": ""}),
    "model-arg": ("width=8 act=relu", {"width": "8", "act": "relu"}),
    "opt-arg": ("momentum=0.9 nesterov=1", {"momentum": "0.9", "nesterov": "1"}),
    "hook-arg": ("by=2", {"by": "2"}),
    "max-memory": ("cuda:0=1GB cpu=2GB", {"cuda:0": 10**9, "cpu": 2 * 10**9}),
    "diff map": ("old=new layer1=", {"old": "new", "layer1": ""}),
    "layer": ("layer1.* fc", ("layer1.*", "fc")),
    "cam layer": ("fc", "fc"),
    **{f"{name} layer": ("fc", "fc") for name in ("top", "filters")},
    "hook": ("os.path:join fc=os:getcwd", ("os.path:join", "fc=os:getcwd")),
    "edit": ("conv1=zero fc=scale:2", ("conv1=zero", "fc=scale:2")),
    "sweep edit": ("scale:2", "scale:2"),
    "grad-edit": ("fc=sign", ("fc=sign",)),
    "loss": ("mse", "mse"),
    "shape": ("1x3x8x8", (1, 3, 8, 8)),
    "gradcheck shape": ("2x3 3", ((2, 3), (3,))),
    "size": ("32x48", (32, 48)),
    "mean": ("0.5,0.25,0", (0.5, 0.25, 0.0)),
    "std": ("1", (1.0,)),
    "max-bytes": ("2GB", 2_000_000_000),
    "memory": ("1GB", 10**9),
    "shard-size": ("1MB", 10**6),
    "limit": ("24GB", 24 * 10**9),
    "units": ("0-2,5", (0, 1, 2, 5)),
    **{f"{name} channels": ("0,3,8-9", (0, 3, 8, 9)) for name in ("show", "plot", "filters")},
    "what": ("input, output", ("input", "output")),
    "run what": ("gradients, optimizer", ("gradients", "optimizer")),
    "stop-on": ("nan, inf", ("nan", "inf")),
    "only": ("nan, inf", ("nan", "inf")),
    "skip": ("tied", ("tied",)),
    "input": ("one.png", [InputSpec("one.png", "image", path="one.png")]),
    "extract input": ("one.png", ["one.png"]),
    "top input": (f"a{os.pathsep}b c", ("a", "b c")),
    "plot input": (f"a{os.pathsep}b c", ("a", "b c")),
    "reduce": ("mean", "mean"),
    "heads": ("4", "4"),
    "run output": ("out", "out"),
    "task": ("optical flow", "optical flow"),
    "sort": ("-type", "-type"),
    "gradcheck sort": ("-note", "-note"),
    "attribute sort": ("-target", "-target"),
    "cam sort": ("-score", "-score"),
    "lens sort": ("-kl", "-kl"),
    "models sort": ("-task", "-task"),
    "verbose": ("2", 2),
    "dpi": ("300", 300),
    "diff weights": (f"a.pth{os.pathsep}b.pth", ("a.pth", "b.pth")),
    "diff adapter": (f"lora{os.pathsep}none", ("lora", "none")),
    "diff dtype": ("float16 float32", ("float16", "float32")),
    "diff device": ("cpu auto", ("cpu", "auto")),
    "diff onnx-optimize": ("none all", ("none", "all")),
}
# Arguments without a default.
NEEDED = {
    **{name: ["a.safetensors"] for name in ("show", "plot", "report")},
    "completion": ["bash"],
    "filters": ["conv1"],
    "filters layer": [],  # the argument is stronger
    **{name: ["features/"] for name in ("export", "verify", "probe", "similar", "top")},
    "diff": ["a.safetensors", "b.safetensors"],
    **{name: ["hf:gpt2"] for name in ("lens", "attribute")},
    # Their model has no default, and an argument is stronger than the variable.
    **{f"{name} model": [] for name in ("lens", "attribute")},
}
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
    for name, command in cli.commands.items()
    if isinstance(command, Command)
    for option in command.options()
    if option.key not in FILES
]
SWITCHES = [case for case in OPTIONS if case.values[1].secondary_opts]


def sample_of(name: str, option: Option) -> tuple[str, object]:
    """A word for an option, which is not its default, and the value it stands for."""
    found = SAMPLES.get(f"{name} {option.key}") or SAMPLES.get(option.key)
    if found is not None:
        return found
    if option.is_flag:
        return ("0", False) if option.default else ("1", True)
    if isinstance(option.type, click.Choice):
        word = next(choice for choice in option.type.choices if choice != option.default)
        return word, (word,) if option.multiple else word
    if isinstance(option.type, click.types.FloatParamType):
        return "0.375", 0.375
    if isinstance(option.type, click.types.IntParamType):
        return "9", 9
    return "word", ("word",) if option.multiple else "word"


def value_of(context: click.Context, option) -> object:
    if option.expose_value:
        return context.params[option.name]
    return getattr(context.obj, option.name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_has_its_variable(parse, monkeypatch, name, option) -> None:
    word, value = sample_of(name, option)
    Path("one.png").write_bytes(PNG)
    needed = NEEDED.get(f"{name} {option.key}", NEEDED.get(name, []))
    if f"{name} {option.key}" not in NEEDED:
        assert value_of(parse(name, *needed), option) != value
    variable = f"HOOKSCOPE_{name}_{option.key}".upper().replace("-", "_")
    monkeypatch.setenv(variable, word)
    assert value_of(parse(name, *needed), option) == value
    assert variable in option.envvar


@pytest.mark.parametrize("variable", ["HOOKSCOPE_MODEL", "HOOKSCOPE_SEED", "HOOKSCOPE_DEVICE"])
def test_model_seed_and_device_have_short_names(parse, monkeypatch, variable) -> None:
    word, value = {"MODEL": ("vgg11",) * 2, "SEED": ("3", 3), "DEVICE": ("mps",) * 2}[variable[10:]]
    monkeypatch.setenv(variable, word)
    for name in ("capture", "grads"):
        assert parse(name).params[variable[10:].lower()] == value


@pytest.mark.parametrize(("name", "option"), SWITCHES)
def test_every_switch_can_be_turned_off_again(parse, monkeypatch, name, option) -> None:
    needed = NEEDED.get(name, [])
    monkeypatch.setenv(option.envvar[0], "1")
    assert value_of(parse(name, *needed), option) is True
    assert value_of(parse(name, *needed, option.secondary_opts[0]), option) is False


def api_of(name: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(getattr(hookscope, name)).parameters)
    parameters.pop(OUTPUTS.get(name, ""), None)
    return {key: value for key, value in parameters.items() if key not in PRESENTATION.split()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cli.commands if name in hookscope.__all__])
def test_options_are_the_keywords_of_the_api_with_their_defaults(parse, name) -> None:
    command = cli.commands[name]
    keywords = api_of(name)
    assert {param.name for param in command.params} - set(PRESENTATION.split()) == set(keywords)
    params = parse(name, *NEEDED.get(name, [])).params
    if name == "capture":
        params["stop"] = False  # a run that ends early has no output to return in Python
    for option in command.options():
        is_argument = f"{name} {option.key}" in NEEDED
        if (
            option.name in keywords
            and keywords[option.name].default is not EMPTY
            and not is_argument
        ):
            assert params[option.name] == keywords[option.name].default, option.key


@pytest.mark.slow
def test_choices_are_those_of_the_library() -> None:
    from hookscope import capture
    from hookscope.cli import options
    from hookscope.specs import catalog

    assert inspect.signature(capture).parameters["model"].default == options.DEFAULT_MODEL
    assert set(catalog.TASKS) == {model.task for model in catalog.bundled_models()}


def test_the_model_is_the_argument_or_the_option(parse) -> None:
    assert parse("capture", "vgg11").params["model"] == "vgg11"
    assert parse("capture", "-m", "vgg11").params["model"] == "vgg11"
    assert parse("capture", "vgg11", "-m", "vgg11").params["model"] == "vgg11"
    assert parse("capture").params["model"] == "resnet18"


def test_the_argument_beats_the_variable(parse, monkeypatch) -> None:
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_MODEL", "alexnet")
    assert parse("capture", "vgg11").params["model"] == "vgg11"


def test_two_different_models_are_refused(parse) -> None:
    with pytest.raises(click.UsageError, match=r"Two models are given: 'vgg11' and 'alexnet'"):
        parse("capture", "vgg11", "-m", "alexnet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-bytes", "many"], "'many' is not a valid size"),
        (["--max-bytes", "5PB"], "'5PB' is not a valid size"),
        (["--size", "0"], "'0' is not a valid size"),
        (["--size", "1x2x3"], "'1x2x3' is not a valid size"),
        (["--mean", "0.5,red"], "'0.5,red' is not a list of numbers"),
        (["--shape", "3x"], "'3x' is not a valid shape"),
        (["--what", "output,weights"], "'weights' is not one of output, input"),
        (["--what", ""], "'' is not one of output, input"),
        (["--depth", "-1"], "-1 is not in the range"),
        (["--seed", "1.5"], "'1.5' is not a valid integer"),
        (["--device", "tpu"], "'tpu' is not one of"),
    ],
)
def test_a_bad_value_is_refused_by_name(parse, arguments, message) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse("capture", *arguments)
    assert f"Invalid value for {arguments[0]}: " in caught.value.format_message()
    assert message in caught.value.format_message()


def test_the_variable_of_a_bad_value_is_named(run) -> None:
    done = run("capture", env={"HOOKSCOPE_SEED": "much"})
    assert done.rc == 2
    assert "Invalid value for --seed (from HOOKSCOPE_SEED): 'much'" in done.stderr


def test_several_inputs_in_a_variable_are_parted_as_in_path(parse, monkeypatch) -> None:
    for name in ("a b.png", "c.png"):
        Path(name).write_bytes(PNG)
    monkeypatch.setenv("HOOKSCOPE_CAPTURE_INPUT", os.pathsep.join(["a b.png", "c.png"]))
    assert [spec.text for spec in parse("capture").params["input"]] == ["a b.png", "c.png"]


def test_a_variable_that_nothing_reads_is_warned_of(run) -> None:
    done = run("config", env={"HOOKSCOPE_CAPTURE_LAYRE": "fc"})
    assert "Warning: The environment variable HOOKSCOPE_CAPTURE_LAYRE is" in done.stderr
    assert "Did you mean HOOKSCOPE_CAPTURE_LAYER?\n" in done.stderr
    done = run("config", env={"HOOKSCOPE_CAPTURE_QQQ": "fc"})
    assert "HOOKSCOPE_CAPTURE_QQQ is not used.\n" in done.stderr
    known = {"HOOKSCOPE_DEBUG": "1", "HOOKSCOPE_SEED": "1"}
    assert run("config", "-q", env=known).stderr == ""


def test_an_empty_path_is_an_error_and_not_the_default(refused, tmp_path) -> None:
    for words in (
        ("extract", "resnet18", "-i", "a.png"),
        ("capture", "resnet18"),
        ("plot", "a.npy"),
    ):
        assert "The path is empty. Give one, or leave out the option." in refused(*words, "-o", "")
        assert not list(tmp_path.glob("*.safetensors"))


def test_a_range_of_channels_that_ends_before_it_begins_is_an_error(refused) -> None:
    assert "The range '3-1' ends before it begins." in refused(
        "plot", "a.safetensors", "--channels", "0,3-1"
    )
