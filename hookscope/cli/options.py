"""The options that commands share; each parameter has the name of the keyword of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.commands import Option, combine, option
from hookscope.cli.declared import options_of
from hookscope.cli.param_types import FileName
from hookscope.errors import RequestError
from hookscope.specs.choices import (
    DEFAULT_MODEL,
    FORWARD,
    HOOK_KINDS_OF,
)
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.request import (
    WEIGHTS_OPTIONS,
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.settings import settings_of
from hookscope.specs.weight_options import WeightTrust

_MODEL_ARGUMENT = f"{__name__}.model_spec"
_LAYER_ARGUMENT = f"{__name__}.layer_spec"


# Model


def _store_model_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_MODEL_ARGUMENT] = value


def _choose_model(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    argument: str | None = ctx.meta.get(_MODEL_ARGUMENT)
    if argument is None:
        if value is None and not ctx.resilient_parsing:
            raise RequestError(
                f"{ctx.info_name} needs a model that reads text, and no model is given.",
                f"Name one: hookscope {ctx.info_name} hf:FOLDER --input"
                ' "text:the capital of Peru is"',
            )
        return value or ""
    on_line = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    if on_line and argument != value:
        raise click.UsageError(f"Two models are given: {argument!r} and {value!r} (-m).", ctx)
    ctx.set_parameter_source(param.name, ParameterSource.COMMANDLINE)
    return argument


def _store_layer_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep LAYER; a single argument is this one, unless --layer is given."""
    if "layer" in ctx.params:  # typed, and read before the arguments
        if value not in (None, ctx.params["layer"]):
            message = f"Two layers are given: {value!r} and {ctx.params['layer']!r} (--layer)."
            raise click.UsageError(message, ctx)
        return
    [named] = (option for option in ctx.command.params if option.name == "layer")
    if value is None and not ctx.resilient_parsing and named.consume_value(ctx, {})[0] is None:
        value = ctx.meta.pop(_MODEL_ARGUMENT, None)
        if value is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    ctx.meta[_LAYER_ARGUMENT] = value


def _choose_layer(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return ctx.meta.get(_LAYER_ARGUMENT) or value or ""


_typed_model = click.argument(
    "model_spec",
    metavar="[MODEL]",
    required=False,
    is_eager=True,
    expose_value=False,
    callback=_store_model_argument,
    shell_complete=completion_values.models,
    help="Name, FILE.py:NAME or NAME(5), .pt, .pt2 or .onnx. Also package.module:NAME,"
    " timm:NAME and hf:FOLDER.",
)


def _model_option(default: str | None) -> Callable[[Any], Any]:
    return option(
        "--model",
        "-m",
        section="Model",
        shared_env="HOOKSCOPE_MODEL",
        default=default,
        metavar="MODEL",
        callback=_choose_model,
        shell_complete=completion_values.models,
        help="The model, if the argument MODEL is not given.",
    )


trust_weights = options_of(WeightTrust)
_loading = options_of(
    ModelRequest, *(name for name, _ in settings_of(ModelRequest) if name not in WEIGHTS_OPTIONS)
)
model = combine(_typed_model, _model_option(DEFAULT_MODEL), _loading)
# Of commands for language models; the default model is one of images.
text_model = combine(_typed_model, _model_option(None), _loading)


def note_model_source(ctx: click.Context) -> None:
    """Print a note on the source of the model's name, unless it was typed."""
    source = ctx.get_parameter_source("model")
    if source is ParameterSource.COMMANDLINE:
        return
    param = next(p for p in ctx.command.params if isinstance(p, Option) and p.name == "model")
    origin = param.origin(ctx, source)
    ctx.obj.note(f"model: {ctx.params['model']} ({f'from {origin}' if origin else 'default'})")


# Layers

one_layer = combine(
    click.argument(
        "layer_spec",
        metavar="LAYER",
        required=False,
        is_eager=True,
        expose_value=False,
        callback=_store_layer_argument,
        shell_complete=completion_values.layers,
        help="Layer, or one of its parameters.",
    ),
    option(
        "--layer",
        "-l",
        section="Model",
        metavar="LAYER",
        is_eager=True,
        callback=_choose_layer,
        shell_complete=completion_values.layers,
        help="The layer, if the argument LAYER is not given.",
    ),
)


def layers_by_default(default: str) -> Callable[[Any], Any]:
    """The options that select layers; without them a command takes ``default``."""
    text = dict(settings_of(LayerSelection))["layers"].help.replace("all.", f"{default}.")
    return options_of(LayerSelection, layers={"help": text})


layers = layers_by_default("all")

# Input

shape = options_of(InputRequest, "shape")
input = options_of(InputRequest, "input")
images = options_of(InputRequest, "preprocess", "size", "mean", "std")
inputs = combine(input, shape, images)
tokenizer = options_of(InputRequest, "tokenizer")
texts = options_of(InputRequest, "tokenizer", "chat")

# Run

weights = options_of(ModelRequest, *WEIGHTS_OPTIONS)
seed = options_of(RunOptions, "seed")
train = options_of(RunOptions, "train")
dtype = options_of(RunOptions, "dtype")
device = options_of(RunOptions, "device")
run = combine(weights, seed, dtype, device, train)
device_map = options_of(RunOptions, "device_map", "max_memory")

# Loss

_NAMES = ("loss", "target", "reduction", "raw")
loss = options_of(LossRequest, *_NAMES)
loss_of_any_model = options_of(
    LossRequest, *_NAMES, loss={"shown_default": "a random direction; ce with --target"}
)


# Interventions


def interventions_of(command: str) -> Callable[[Any], Any]:
    """Return the options of ``command``. Gradients are edited only with a backward pass."""
    edits = ("edits",) if command == "capture" else ("edits", "grad_edits")
    kinds = HOOK_KINDS_OF[command]
    text = f"Kind of the hooks: {', '.join(kinds)}. Default: {FORWARD}."
    return options_of(
        Interventions,
        *(*edits, "compare", "hooks", "hook_kind", "hook_args"),
        hook_kind={"help": text},
    )


# Features


def features_argument(name: str = "features", *, required: bool = True) -> Any:
    """Return the argument of a features folder."""
    return click.argument(
        name,
        metavar=name.upper() if required else f"[{name.upper()}]",
        required=required,
        type=FileName("folder"),
        help="Folder that 'hookscope extract' wrote, or its address."
        if required
        else "Another one, of the same inputs.",
    )
