"""Options: each has its variable, and is a keyword of the function it leads to."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import click
import pytest

from hookscope.cli.commands import Command
from hookscope.cli.main import cli
from hookscope.specs.input_spec import InputSpec

# What decides how a result is shown or where it is put, and so is no keyword of the API.
PRESENTATION = {"quiet", "verbose", "json", "color", "config", "no_config"}
PRESENTATION |= {"output", "no_output", "force"}
# A second form of the result, and how fine it is.
PRESENTATION |= {"chrome", "dpi", "mermaid", "dot"}
# Whether the command reuses its own earlier result.
PRESENTATION |= {"cache"}
# The colours of the picture of cam, which are keywords of save_overlay.
PRESENTATION |= {"alpha", "colormap"}
# The order and the number of rows, the digits of values, and the form of the table.
PRESENTATION |= {"sort", "top", "precision", "csv"}
# The positional form of --model.
PRESENTATION |= {"model_spec"}
# The keyword for --output, which commands write themselves.
OUTPUTS = dict.fromkeys(("capture", "sweep", "ablate"), "file")
# What only Python can give.
CALLBACKS = {"progress"}
PNG = b"\x89PNG\r\n\x1a\n"  # enough to pass for an image until it is decoded
WITH_API = (
    "tree",
    "capture",
    "grads",
    "step",
    "ablate",
    "sweep",
    "lens",
    "attribute",
    "cam",
    "trace",
    "gradcheck",
    "models",
)
WITH_API += ("extract", "report", "plot", "filters", "check", "diff", "export", "verify")
WITH_API += ("similar", "probe", "top")

# For each option a word, as a variable or a flag would hold it, and the value it stands for.
SAMPLES = {
    "model": ("alexnet", "alexnet"),
    "rename": ("backbone=features head=", {"backbone": "features", "head": ""}),
    "partial": ("1", True),
    "attn": ("eager", "eager"),
    "adapter": ("lora", "lora"),
    "model-arg": ("width=8 act=relu", {"width": "8", "act": "relu"}),
    "method": ("encode", "encode"),
    "trust": ("1", True),
    "onnx-optimize": ("basic", "basic"),
    "layer": ("layer1.* fc", ("layer1.*", "fc")),
    "type": ("Conv2d", ("Conv2d",)),
    "depth": ("2", 2),
    "leaves": ("1", True),
    "shapes": ("yes", True),
    "shape": ("1x3x8x8", (1, 3, 8, 8)),
    "what": ("input, output", ("input", "output")),
    "ops": ("1", True),
    "attention": ("1", True),
    "input": ("one.png", [InputSpec("one.png", "image", path="one.png")]),
    "extract input": ("one.png", ["one.png"]),
    "edit": ("conv1=zero fc=scale:2", ("conv1=zero", "fc=scale:2")),
    "grad-edit": ("fc=sign", ("fc=sign",)),
    "compare": ("1", True),
    "preprocess": ("imagenet", "imagenet"),
    "size": ("32x48", (32, 48)),
    "mean": ("0.5,0.25,0", (0.5, 0.25, 0.0)),
    "std": ("1", (1.0,)),
    "tokenizer": ("t.json", "t.json"),
    "chat": ("1", True),
    "weights": ("w.pth", "w.pth"),
    "seed": ("7", 7),
    "dtype": ("float16", "float16"),
    "device": ("auto", "auto"),
    "device-map": ("auto", "auto"),
    "max-memory": ("cuda:0=1GB cpu=2GB", {"cuda:0": 10**9, "cpu": 2 * 10**9}),
    "train": ("true", True),
    "generate": ("3", 3),
    "capture stop": ("1", True),
    "verify": ("on", True),
    "strict": ("1", True),
    "max-bytes": ("2GB", 2_000_000_000),
    "output": ("out.safetensors", "out.safetensors"),
    "force": ("1", True),
    "no-output": ("1", True),
    "loss": ("mse", "mse"),
    "target": ("3,7", "3,7"),
    "reduction": ("sum", "sum"),
    "raw": ("1", True),
    "penalty": ("gp", "gp"),
    "optimizer": ("adam", "adam"),
    "lr": ("0.5", 0.5),
    "opt-arg": ("momentum=0.9 nesterov=1", {"momentum": "0.9", "nesterov": "1"}),
    "eps": ("1e-5", 1e-5),
    "atol": ("1e-4", 1e-4),
    "rtol": ("0.01", 0.01),
    "gradcheck shape": ("2x3 3", ((2, 3), (3,))),
    "hook": ("os.path:join fc=os:getcwd", ("os.path:join", "fc=os:getcwd")),
    "hook-kind": ("forward_pre forward", ("forward_pre", "forward")),
    "hook-arg": ("by=2", {"by": "2"}),
    "by": ("noise", "noise"),
    "channels": ("1", True),
    "rank": ("loss", "loss"),
    "positions": ("0,-1", "0,-1"),
    "heads": ("4", "4"),
    "experts": ("1", True),
    "metric": ("kl", "kl"),
    "ablate output": ("out.json", "out.json"),
    "norm": ("none", "none"),
    "head": ("lm_head", "lm_head"),
    "lens output": ("out.json", "out.json"),
    "attribute output": ("out.json", "out.json"),
    "attribute by": ("occlusion", "occlusion"),
    "against": ("Rome", "Rome"),
    "position": ("3", 3),
    "cam by": ("layercam", "layercam"),
    "cam layer": ("fc", "fc"),
    "cam output": ("out.png", "out.png"),
    "upsample": ("nearest", "nearest"),
    "steps": ("7", 7),
    "baseline": ("black", "black"),
    "top by": ("mean", "mean"),
    "top layer": ("fc", "fc"),
    "units": ("0-2,5", (0, 1, 2, 5)),
    "direction": ("d.npy", "d.npy"),
    "top output": ("out.json", "out.json"),
    "labels": ("y.csv", "y.csv"),
    "probe by": ("ridge", "ridge"),
    "splits": ("3", 3),
    "test": ("0.5", 0.5),
    "l2": ("0.1", 0.1),
    "probe output": ("out.json", "out.json"),
    "similar by": ("rsa", "rsa"),
    "similar output": ("out.csv", "out.csv"),
    "distance": ("cosine", "cosine"),
    "correlation": ("spearman", "spearman"),
    "neighbors": ("3", 3),
    "patch": ("5", 5),
    "forward-only": ("1", True),
    "batch": ("4", 4),
    "memory": ("1GB", 10**9),
    "workers": ("3", 3),
    "shard-size": ("1MB", 10**6),
    "every": ("10", 10),
    "reduce": ("mean", "mean"),
    "store-dtype": ("int8", "int8"),
    "stats-only": ("1", True),
    "decode": ("fast", "fast"),
    "stop": ("0", False),
    "cache": ("0", False),
    "max-tokens": ("9", 9),
    "skip-bad": ("1", True),
    "resume": ("1", True),
    "channels-last": ("1", True),
    "autocast": ("bfloat16", "bfloat16"),
    "only": ("nan, inf", ("nan", "inf")),
    "skip": ("tied", ("tied",)),
    "alpha": ("0.3", 0.3),
    "colormap": ("turbo", "turbo"),
    "dead": ("0.3", 0.3),
    "saturated": ("0.5", 0.5),
    "margin": ("0.05", 0.05),
    "vanishing": ("1e-5", 1e-5),
    "exploding": ("1e5", 1e5),
    "floor": ("1e-9", 1e-9),
    "ceiling": ("100", 100.0),
    "check output": ("out.sarif", "out.sarif"),
    "chrome": ("t.json", "t.json"),
    "mermaid": ("1", True),
    "hash": ("1", True),
    "dot": ("1", True),
    "map": ("1", True),
    "diff map": ("old=new layer1=", {"old": "new", "layer1": ""}),
    "sweep edit": ("scale:2", "scale:2"),
    "diff atol": ("0.1", 0.1),
    "diff rtol": ("0.1", 0.1),
    "equal-nan": ("1", True),
    "diff weights": (f"a.pth{os.pathsep}b.pth", ("a.pth", "b.pth")),
    "diff method": ("encode", ("encode",)),
    "diff attn": ("eager", ("eager",)),
    "diff dtype": ("float16 float32", ("float16", "float32")),
    "diff device": ("cpu auto", ("cpu", "auto")),
    "diff onnx-optimize": ("none all", ("none", "all")),
    "diff adapter": (f"lora{os.pathsep}none", ("lora", "none")),
    **{f"{name} channels": ("0,3,8-9", (0, 3, 8, 9)) for name in ("show", "plot", "filters")},
    **{f"{name} by": ("strength", "strength") for name in ("show", "plot", "filters")},
    "kind": ("hist", "hist"),
    "dark": ("1", True),
    "dpi": ("300", 300),
    "count": ("4", 4),
    "scale": ("each", "each"),
    "channel-dim": ("-1", -1),
    "run what": ("gradients, optimizer", ("gradients", "optimizer")),
    "stop-on": ("nan, inf", ("nan", "inf")),
    "live": ("1", True),
    "module": ("1", True),
    "run output": ("out", "out"),
    "task": ("optical flow", "optical flow"),
    "sort": ("-type", "-type"),
    "attribute sort": ("-target", "-target"),
    "cam sort": ("-score", "-score"),
    "gradcheck sort": ("-note", "-note"),
    "lens sort": ("-kl", "-kl"),
    "models sort": ("-task", "-task"),
    "csv": ("1", True),
    "top": ("3", 3),
    "precision": ("9", 9),
    "quiet": ("1", True),
    "verbose": ("2", 2),
    "json": ("1", True),
    "color": ("0", False),
}
# Arguments without a default.
NEEDED = {
    **{name: ["a.safetensors"] for name in ("show", "plot", "report")},
    "completion": ["bash"],
    "filters": ["conv1"],
    **{name: ["features/"] for name in ("export", "verify", "probe", "similar", "top")},
    "diff": ["a.safetensors", "b.safetensors"],
    **{name: ["hf:gpt2"] for name in ("lens", "attribute")},
    # Their model has no default, and an argument is stronger than the variable.
    **{f"{name} model": [] for name in ("lens", "attribute")},
}
# In Python a capture has the output of the model, which a run that ends early does not return.
OTHER_DEFAULTS = {("capture", "stop"): None}
EMPTY = inspect.Parameter.empty
FILES = {"config", "no-config"}  # their effect is in test_settings.py


OPTIONS = [
    pytest.param(name, option, id=f"{name}-{option.key}")
    for name, command in cli.commands.items()
    if isinstance(command, Command)
    for option in command.options()
    if option.key not in FILES
]


def value_of(context: click.Context, option) -> object:
    if option.expose_value:
        return context.params[option.name]
    return getattr(context.obj, option.name)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_has_its_variable(parse, monkeypatch, name, option) -> None:
    word, value = SAMPLES.get(f"{name} {option.key}") or SAMPLES[option.key]
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


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_switch_can_be_turned_off_again(parse, monkeypatch, name, option) -> None:
    if not option.secondary_opts:
        return
    needed = NEEDED.get(name, [])
    monkeypatch.setenv(option.envvar[0], "1")
    assert value_of(parse(name, *needed), option) is True
    assert value_of(parse(name, *needed, f"--no-{option.key}"), option) is False


def api_of(name: str) -> dict[str, inspect.Parameter]:
    import hookscope

    parameters = dict(inspect.signature(getattr(hookscope, name)).parameters)
    parameters.pop(OUTPUTS.get(name, ""), None)
    return parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_API)
def test_options_are_the_keywords_of_the_api(name) -> None:
    names = {param.name for param in cli.commands[name].params} - PRESENTATION
    assert names == set(api_of(name)) - CALLBACKS - PRESENTATION


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_API)
def test_options_have_the_defaults_of_the_api(parse, name) -> None:
    params = parse(name, *NEEDED.get(name, [])).params
    arguments = {p.name for p in cli.commands[name].params if isinstance(p, click.Argument)}
    for keyword, parameter in api_of(name).items():
        if keyword not in CALLBACKS | PRESENTATION | arguments and parameter.default is not EMPTY:
            default = OTHER_DEFAULTS.get((name, keyword), parameter.default)
            assert params[keyword] == default, keyword


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


def test_an_empty_path_is_an_error_and_not_the_default(run, tmp_path) -> None:
    for words in (
        ("extract", "resnet18", "-i", "a.png"),
        ("capture", "resnet18"),
        ("plot", "a.npy"),
    ):
        done = run(*words, "-o", "")
        assert (done.rc, done.stdout) == (2, "")
        assert "The path is empty. Give one, or leave out the option." in done.stderr
        assert not list(tmp_path.glob("*.safetensors"))


def test_a_range_of_channels_that_ends_before_it_begins_is_an_error(run) -> None:
    done = run("plot", "a.safetensors", "--channels", "0,3-1")
    assert (done.rc, done.stdout) == (2, "")
    assert "The range '3-1' ends before it begins." in done.stderr
