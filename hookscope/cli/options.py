"""The options that commands share, in groups.

The name of each parameter is the keyword of the function in ``hookscope.api``, so that a command
passes its values on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.commands import Option, combine, flag, option
from hookscope.cli.param_types import (
    CommaList,
    FileName,
    ParsedValue,
    read_byte_count,
)
from hookscope.specs.choices import DEFAULT_MODEL, DEVICE_MAPS, DEVICES, DTYPES

_MODEL_ARGUMENT = f"{__name__}.model_word"


# Model


def _store_model_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_MODEL_ARGUMENT] = value


def _choose_model(ctx: click.Context, param: click.Parameter, value: str) -> str:
    argument: str | None = ctx.meta.get(_MODEL_ARGUMENT)
    if argument is None:
        return value
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
            why = "is given twice" if equals else "is not DEVICE=SIZE, such as cuda:0=10GB"
            raise click.BadParameter(f"{pair!r} {why}.", ctx, param)
        try:
            memory[device] = read_byte_count(size)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return memory


def _refuse_from_file(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """Refuse --trust from a settings file, which may come with the untrusted file."""
    if value and ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT_MAP:
        raise click.UsageError("trust is not taken from a settings file; type --trust.", ctx)
    return value


trust = flag(
    "trust",
    section="Model",
    callback=_refuse_from_file,
    help="Open an exported program (.pt2) even if it carries pickles, which can run any code.",
)

model = combine(
    click.argument(
        "model_word",
        metavar="[MODEL]",
        required=False,
        is_eager=True,
        expose_value=False,
        callback=_store_model_argument,
        shell_complete=completion_values.models,
        help="A torchvision name ('hookscope models' lists them), FILE.py:NAME,"
        " package.module:NAME, timm:NAME, hf:FOLDER, or a scripted (.pt) or exported (.pt2) file.",
    ),
    option(
        "--model",
        "-m",
        section="Model",
        shared_env="HOOKSCOPE_MODEL",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        callback=_choose_model,
        shell_complete=completion_values.models,
        help="The model, in place of MODEL.",
    ),
    option(
        "--model-arg",
        "model_args",
        section="Model",
        multiple=True,
        metavar="KEY=VALUE",
        callback=read_assignments,
        help="An argument for the class or factory that builds the model, or a value of a hf:"
        " model's configuration. Repeatable.",
    ),
    option(
        "--method",
        section="Model",
        metavar="NAME",
        help="Run this method of the model in place of forward.",
    ),
    option(
        "--attn",
        section="Model",
        metavar="KIND",
        help="How a hf: model computes attention, such as eager, which computes its weights.",
    ),
    trust,
)


def note_model_source(ctx: click.Context) -> None:
    """Print a note on the source of the model's name, unless it was typed."""
    source = ctx.get_parameter_source("model")
    if source is ParameterSource.COMMANDLINE:
        return
    param = next(p for p in ctx.command.params if isinstance(p, Option) and p.name == "model")
    ctx.obj.note(
        f"model: {ctx.params['model']} (from {param.origin(ctx, source) or 'the default'})"
    )


# Layers


layers = combine(
    option(
        "--layer",
        "-l",
        "layers",
        section="Layers",
        multiple=True,
        metavar="GLOB",
        shell_complete=completion_values.layers,
        help="Layers by name: * matches dots too, {a,b} is either, . is the model itself, a leading"
        " ! takes away. Repeatable; all layers if not given.",
    ),
    option(
        "--type",
        "types",
        section="Layers",
        multiple=True,
        metavar="NAME",
        shell_complete=completion_values.types,
        help="Only layers of this type, such as Conv2d. Repeatable.",
    ),
    option(
        "--depth",
        section="Layers",
        type=click.IntRange(min=0),
        metavar="N",
        help="Only layers at most this deep; 0 is the model itself.",
    ),
    flag("leaves", section="Layers", help="Only layers that hold no others."),
)

shapes = flag(
    "shapes",
    section="Layers",
    help="Add output shape, calls and FLOPs, from a pass without values where the model allows.",
)


# Run

partial = flag(
    "partial",
    section="Run",
    help="Take from the file of weights what fits and leave the rest as built.",
)

weights = combine(
    option(
        "--weights",
        section="Run",
        default="random",
        type=FileName("weights"),
        shell_complete=completion_values.weights,
        help="random (from the seed), default or a name such as IMAGENET1K_V2 (downloaded once), or"
        " a .safetensors or .pth FILE, or the FOLDER or index of a set in several files.",
    ),
    option(
        "--rename",
        section="Run",
        multiple=True,
        metavar="OLD=NEW",
        callback=read_prefixes,
        help="What begins with OLD in the file of weights begins with NEW in the model."
        " Repeatable.",
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
    help="Seeds weights, noise and dropout.",
)

train = flag("train", section="Run", help="Run in training mode; buffers are put back afterwards.")

dtype = option(
    "--dtype",
    section="Run",
    type=click.Choice(DTYPES),
    metavar="DTYPE",
    help=f"Type of the weights and the input ({', '.join(DTYPES)}); the model's if not given.",
)

device = option(
    "--device",
    section="Run",
    shared_env="HOOKSCOPE_DEVICE",
    type=click.Choice(DEVICES),
    help="Where the model runs: cpu if not given; auto takes a GPU if there is one.",
)

run = combine(weights, seed, dtype, device, train)

device_map = combine(
    option(
        "--device-map",
        section="Run",
        type=click.Choice(DEVICE_MAPS),
        help="Spread a model that is larger than one device over those there are, memory and disk,"
        " by accelerate.",
    ),
    option(
        "--max-memory",
        section="Run",
        multiple=True,
        metavar="DEVICE=SIZE",
        callback=_read_memory,
        help="What weights may take of a device with --device-map: cuda:0=10GB, cpu=8GB."
        " Repeatable.",
    ),
)

limits = combine(
    flag("strict", section="Checks", help="Fail (exit 1) if a chosen layer never runs."),
    option(
        "--max-bytes",
        section="Checks",
        type=ParsedValue("bytes", read_byte_count),
        help="Refuse to record more than this: 500MB, 2GB, 1GiB.",
    ),
)

checks = combine(
    flag(
        "verify",
        section="Checks",
        help="Run again without hooks but those of the edits, and demand a bit-equal output.",
    ),
    limits,
)


def what(default: str, *choices: str) -> Callable[[Any], Any]:
    """Return the option that selects the tensors to record."""
    return option(
        "--what",
        section="Layers",
        default=default,
        type=CommaList(*choices),
        help="What to record of each layer; several with commas between.",
    )


ops = flag(
    "ops",
    section="Layers",
    help="Record too what functions return that these layers call between modules: add, flatten,"
    " matmul.",
)

attention = flag(
    "attention",
    section="Layers",
    help="Record the weights of attention too. What a fused kernel hides is recomputed, and kept"
    " only if it gives the kernel's output.",
)


# Output

output = combine(
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The file to write: .safetensors, .npy (one tensor) or .npz;"
        " MODEL.COMMAND.safetensors here if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
)
