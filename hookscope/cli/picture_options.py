"""The common options of the commands that draw: tensors, channels, colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hookscope.cli import completion_values
from hookscope.cli.commands import combine
from hookscope.cli.declared import options_of
from hookscope.cli.param_types import FileName
from hookscope.specs.plot_options import PlotOptions

tensors = combine(
    click.argument(
        "file",
        metavar="FILE",
        type=FileName("file"),
        help="Result file, or weights.",
    ),
    click.argument(
        "keys",
        metavar="[KEY]...",
        nargs=-1,
        shell_complete=completion_values.keys,
        help="Layer, key or glob. A slice may follow: layer3.0/output[0,3].",
    ),
)


def channels(section: str) -> Callable[[Any], Any]:
    """Return the options that select channels."""
    return _in_section(section, "channels", "by", "count")


def channel_details(section: str) -> Callable[[Any], Any]:
    """Return further options for the channels of a recorded tensor."""
    return _in_section(section, "seed", "dim")


def scale(section: str) -> Callable[[Any], Any]:
    """Return the option of the colour scale."""
    return _in_section(section, "scale")


def _in_section(section: str, *names: str) -> Callable[[Any], Any]:
    return options_of(PlotOptions, *names, **{name: {"section": section} for name in names})


appearance = options_of(PlotOptions, "scale", "dark")
