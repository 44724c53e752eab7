"""The options that commands share, in groups.

The name of each parameter is the keyword of the function in ``hookscope.api``, so that a command
passes its values on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.commands import Option, combine, flag, option
from hookscope.cli.param_types import (
    Choice,
    CommaList,
    FileName,
    ParsedValue,
    read_byte_count,
)
from hookscope.errors import RequestError
from hookscope.specs.choices import (
    DEFAULT_MODEL,
    DEVICE_ALIASES,
    DEVICE_MAPS,
    DEVICES,
    DTYPE_ALIASES,
    DTYPES,
    ONNX_OPTIMIZATIONS,
)

_MODEL_ARGUMENT = f"{__name__}.model_spec"


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


def argument_after_model(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the value of an argument after MODEL; a single argument is this one."""
    if value is None and not ctx.resilient_parsing:
        value = ctx.meta.pop(_MODEL_ARGUMENT, None)
        if value is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    return value or ""


def read_assignments(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the ``KEY=VALUE`` pairs of an option as a dict, or None."""
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.specs.model_spec import parse_assignments

    return dict(parse_assignments(value))


def read_prefixes(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str] | None:
    """Return the ``OLD=NEW`` pairs of an option as a dict, or None."""
    if not value or ctx.resilient_parsing:
        return None
    from hookscope.specs.model_spec import parse_prefixes

    return parse_prefixes(value)


def _read_memory(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, int] | None:
    """Return the ``DEVICE=SIZE`` pairs of an option as a dict, or None."""
    if not value or ctx.resilient_parsing:
        return None
    memory: dict[str, int] = {}
    for pair in value:
        device, equals, size = pair.partition("=")
        if not equals or device in memory:
            why = (
                "is given twice"
                if equals
                else "is not of the form DEVICE=SIZE, such as cuda:0=10GB"
            )
            raise click.BadParameter(f"{pair!r} {why}.", ctx, param)
        try:
            memory[device] = read_byte_count(size)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return memory


def _refuse_from_file(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """Refuse --trust from a settings file, which may come with the untrusted file."""
    if value and ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT_MAP:
        raise click.UsageError("trust cannot be set in a settings file. Type --trust.", ctx)
    return value


trust = flag(
    "trust",
    section="Model",
    callback=_refuse_from_file,
    help="Open a .pt2 file with pickles, or a pickled model, even if that runs code.",
)

trust_weights = flag(
    "trust",
    section="Weights",
    callback=_refuse_from_file,
    help="Build a pickled model, which runs its code.",
)

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


_loading = combine(
    option(
        "--model-arg",
        "model_args",
        section="Model",
        multiple=True,
        metavar="KEY=VALUE",
        callback=read_assignments,
        help="Constructor argument. Of an hf: model a configuration value. Repeatable.",
    ),
    option(
        "--method",
        section="Model",
        metavar="NAME",
        help="Call this method instead of forward.",
    ),
    option(
        "--attn",
        section="Model",
        metavar="KIND",
        help="Attention implementation of an hf: model, such as eager.",
    ),
    trust,
    option(
        "--onnx-optimize",
        section="Model",
        type=Choice(ONNX_OPTIMIZATIONS),
        help="How far onnxruntime may change the graph of an ONNX file. Default: none.",
    ),
    option(
        "--adapter",
        section="Model",
        type=FileName("folder"),
        help="Folder of a peft adapter for an hf: model.",
    ),
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


def layers_by_default(default: str) -> Callable[[Any], Any]:
    """The options that select layers; without them a command takes ``default``."""
    return combine(
        option(
            "--layer",
            "-l",
            "layers",
            section="Layers",
            multiple=True,
            metavar="GLOB",
            shell_complete=completion_values.layers,
            help="Layers to select, such as 'layer3.*', or '(model)'. Prefix ! to exclude."
            f" Repeatable. Default: {default}.",
        ),
        option(
            "--type",
            "types",
            section="Layers",
            multiple=True,
            metavar="NAME",
            shell_complete=completion_values.types,
            help="Layers of this type only, such as Conv2d. Repeatable.",
        ),
        option(
            "--depth",
            section="Layers",
            type=click.IntRange(min=0),
            metavar="N",
            help="Maximum depth; 0 is the model itself.",
        ),
        flag("leaves", section="Layers", help="Leaf layers only."),
    )


layers = layers_by_default("all")

shapes = flag(
    "shapes",
    section="Layers",
    help="Show output shapes, call counts and FLOPs.",
)


# Run

partial = flag(
    "partial",
    section="Run",
    help="Load only the weights that match; keep initial values for the rest.",
)

weights = combine(
    option(
        "--weights",
        section="Run",
        default="random",
        type=FileName("weights"),
        shell_complete=completion_values.weights,
        help="random, default (pretrained), a name, or a file.",
    ),
    option(
        "--rename",
        section="Run",
        multiple=True,
        metavar="OLD=NEW",
        callback=read_prefixes,
        help="Replace the prefix OLD by NEW in checkpoint keys. Repeatable.",
    ),
    partial,
)

seed = option(
    "--seed",
    section="Run",
    shared_env="HOOKSCOPE_SEED",
    default=0,
    type=int,
    metavar="N",
    help="Seed for weights, noise and dropout.",
)

train = flag("train", section="Run", help="Run in training mode; buffers are restored afterwards.")

dtype = option(
    "--dtype",
    section="Run",
    type=Choice(DTYPES, DTYPE_ALIASES),
    metavar="DTYPE",
    help=f"Dtype of weights and input: {', '.join(DTYPES)}. Default: the model's.",
)

device = option(
    "--device",
    section="Run",
    shared_env="HOOKSCOPE_DEVICE",
    type=Choice(DEVICES, DEVICE_ALIASES),
    help="Device to run on; auto uses a GPU if there is one. Default: cpu.",
)

run = combine(weights, seed, dtype, device, train)

device_map = combine(
    option(
        "--device-map",
        section="Run",
        type=Choice(DEVICE_MAPS),
        metavar="MAP",
        help="Split the model across GPUs, CPU memory and disk (requires accelerate):"
        f" {', '.join(DEVICE_MAPS)}.",
    ),
    option(
        "--max-memory",
        section="Run",
        multiple=True,
        metavar="DEVICE=SIZE",
        callback=_read_memory,
        help="Maximum weight memory with --device-map, such as cuda:0=10GB. Repeatable.",
    ),
)

limits = combine(
    flag("strict", section="Checks", help="Fail (exit 1) if a selected layer never runs."),
    option(
        "--max-bytes",
        section="Checks",
        type=ParsedValue("bytes", read_byte_count),
        help="Fail if more would be recorded than this, such as 2GB.",
    ),
)

stop = flag(
    "stop",
    section="Run",
    default=None,
    help="End the run after the last selected layer (default: automatic).",
)

checks = combine(
    flag(
        "verify",
        section="Checks",
        help="Re-run without recording and require a bit-identical output.",
    ),
    limits,
)


def what(
    default: str, *choices: str, aliases: Mapping[str, str] | None = None
) -> Callable[[Any], Any]:
    """Return the option that selects the tensors to record."""
    return option(
        "--what",
        section="Layers",
        default=default,
        type=CommaList(*choices, aliases=aliases),
        help="Tensors to record of each layer. Separate several with commas.",
    )


ops = flag(
    "ops",
    section="Layers",
    help="Also record results of functions called between modules (add, flatten, ...).",
)

attention = flag(
    "attention",
    section="Layers",
    help="Also record attention weights.",
)


# Output

no_output = option(
    "--no-output",
    section="Output",
    is_flag=True,
    default=False,
    help="Do not write a file.",
)

force = flag("force", section="Output", help="Replace a file that hookscope did not write.")

output = combine(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="File to write: .safetensors, .npy or .npz. An .npy file contains one tensor. Default:"
        " MODEL.COMMAND.safetensors.",
    ),
    no_output,
    force,
)
